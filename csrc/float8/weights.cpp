#include "float8/weights.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>

namespace torchamp::float8 {
namespace {

using at::Tensor;

/// Where a tensor's elements begin: in which storage, after how many others.
using Place = std::pair<const c10::StorageImpl*, int64_t>;

Place place_of(const Tensor& tensor) {
  const auto& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  return {storage.unsafeGetStorageImpl(), tensor.storage_offset()};
}

/// A weight at its place.
struct Known {
  c10::intrusive_ptr<Weights> weights;
  size_t index;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< whose address is not used again
};

struct Registry {
  std::mutex mutex;
  std::map<Place, Known> known;
};

/// Never destroyed: models may outlive other statics.
Registry& registry() {
  static auto& instance = *new Registry;
  return instance;
}

c10::Stream stream_of(const Tensor& tensor) {
  return c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
}

template <class Map, class Predicate>
void erase_where(Map& map, const Predicate& is_unwanted) {
  for (auto each = map.begin(); each != map.end();) {
    each = is_unwanted(each->second) ? map.erase(each) : std::next(each);
  }
}

/// Inference tensors have no versions: what is copied of one is used once.
Mark mark_of(const Tensor& tensor) {
  return tensor.is_inference() ? Mark() : Mark(tensor);
}

Tensor as_rows(const Tensor& tensor) {
  return tensor.detach().reshape({-1, tensor.size(-1)});
}

}  // namespace

bool is_plain(const Tensor& tensor) {
  constexpr c10::DispatchKeySet wrapped(
      {c10::DispatchKey::Python, c10::DispatchKey::Functionalize});
  return tensor.has_storage() && tensor.layout() == at::kStrided &&
         !tensor.key_set().has_any(wrapped);
}

Found find(const Tensor& matrix) {
  if (!is_plain(matrix) || matrix.dim() != 2) return {};
  const std::lock_guard<std::mutex> lock(registry().mutex);
  const auto known = registry().known.find(place_of(matrix));
  if (known == registry().known.end()) return {};
  const auto& [weights, index, storage] = known->second;
  const Tensor& param = weights->param(index);
  const bool is_moved = !is_plain(param) || place_of(param) != place_of(matrix);
  if (is_moved || matrix.scalar_type() != param.scalar_type()) return {};
  const bool is_same = matrix.sizes() == param.sizes() && matrix.strides() == param.strides();
  const bool is_transpose = matrix.size(0) == param.size(1) && matrix.size(1) == param.size(0) &&
                            matrix.stride(0) == param.stride(1) &&
                            matrix.stride(1) == param.stride(0);
  if (!is_same && !is_transpose) return {};
  return {weights, index, !is_same};
}

Weights::Weights(const Named& linears, bool follows_casts) : follows_casts_(follows_casts) {
  for (const auto& [name, param] : linears) {
    weights_.push_back({name, param, param.scalar_type(), 0, {}, {}, {}});
  }
}

auto Weights::open(const Named& linears, bool follows_casts) -> Open {
  Open opened(c10::make_intrusive<Weights>(linears, follows_casts).release());
  opened->follow();
  return opened;
}

void Weights::Close::operator()(Weights* weights) const {
  c10::intrusive_ptr<Weights>::reclaim(weights)->close();
}

detail::Float8Products Weights::products() {
  detail::Float8Products found;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Weight& each : weights_) {
    if (each.rows > 0) found.emplace_back(each.name, each.param, each.rows);
  }
  return found;
}

void Weights::follow() {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  auto& known = registry().known;
  if (is_closed_) return;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Tensor& param = weights_[i].param;
    const bool fits = is_plain(param) && param.is_contiguous() && param.dim() == 2 &&
                      param.scalar_type() == weights_[i].dtype;
    if (!fits || known.count(place_of(param)) > 0) continue;
    erase_where(known,
                [&](const Known& each) { return each.weights.get() == this && each.index == i; });
    known.emplace(place_of(param), Known{c10::intrusive_ptr<Weights>::reclaim_copy(this), i,
                                         param.storage().getWeakStorageImpl()});
    const std::lock_guard<std::mutex> own(mutex_);
    weights_[i].copy.reset();
  }
}

void Weights::close() {
  forget_copies();
  opened_.close();
  const std::lock_guard<std::mutex> lock(registry().mutex);
  is_closed_ = true;
  erase_where(registry().known, [this](const Known& each) { return each.weights.get() == this; });
}

bool Weights::Copy::is_of(const Tensor& tensor, bool columns) const {
  const bool is_usable = c10::InferenceMode::is_enabled() || !matrix.scale.is_inference();
  return is_usable && !tensor.is_inference() && mark.is_unchanged(tensor) &&
         stream == stream_of(tensor) && (!columns || matrix.columns.defined());
}

Matrix Weights::copy_of(size_t index, bool columns) {
  const Tensor& param = weights_[index].param;
  std::vector<size_t> written;
  std::vector<Copy> copies;
  std::vector<Tensor> params;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto& copy = weights_[index].copy;
  if (copy && copy->is_of(param, columns)) return copy->matrix;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Weight& each = weights_[i];
    const bool is_used = i == index || each.rows > 0;
    const bool is_current = each.copy && each.copy->is_of(each.param, columns);
    if (!is_used || is_current || each.param.device() != param.device()) continue;
    written.push_back(i);
    copies.push_back({{}, mark_of(each.param), stream_of(each.param)});
    params.push_back(each.param.detach());
  }
  lock.unlock();
  const std::vector<Matrix> made = cast(params, at::kFloat8_e4m3fn, /*rows=*/true, columns);
  lock.lock();
  Matrix result;
  for (size_t k = 0; k < written.size(); ++k) {
    if (written[k] == index) result = made[k];
    copies[k].matrix = made[k];
    weights_[written[k]].copy = std::move(copies[k]);
  }
  return result;
}

Matrix Weights::copy_of_input(size_t index, const Tensor& input, bool columns) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!input_ || !input_->is_of(input, columns)) {
    lock.unlock();
    Copy copy{{}, mark_of(input), stream_of(input)};
    copy.matrix = cast({as_rows(input)}, at::kFloat8_e4m3fn, /*rows=*/true, columns).front();
    lock.lock();
    input_ = std::move(copy);
  }
  weights_[index].input_scale = input_->matrix.scale;
  weights_[index].rows = input_->matrix.rows.size(0);
  return input_->matrix;
}

void Weights::note_grad(size_t index, const Tensor& scale) {
  const std::lock_guard<std::mutex> lock(mutex_);
  weights_[index].grad_scale = scale;
}

void Weights::forget_copies() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Weight& weight : weights_) weight.copy.reset();
  input_.reset();
}

std::string Weights::nonfinite() {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::vector<Weight> weights = weights_;
  lock.unlock();
  const auto is_nan = [](const Tensor& scale) {
    return scale.defined() && at::isnan(scale).item<bool>();
  };
  for (const Weight& each : weights) {
    if (each.copy && is_nan(each.copy->matrix.scale)) return "the weight of " + each.name;
    if (is_nan(each.input_scale)) return "the input of " + each.name;
  }
  for (auto each = weights.rbegin(); each != weights.rend(); ++each) {
    if (is_nan(each->grad_scale)) return "the grad of the output of " + each->name;
  }
  return "";
}

Float8Forward::Float8Forward(Weights& weights)
    : weights_(c10::intrusive_ptr<Weights>::reclaim_copy(&weights)), joined_(weights.opened_) {
  weights_->follow();
  if (weights_->follows_casts()) return;
  const bool is_off = at::autocast::is_autocast_cache_enabled();
  shield_.emplace();
  at::autocast::set_autocast_cache_enabled(is_off);
}

Float8Forward::~Float8Forward() {
  if (!at::GradMode::is_enabled()) weights_->forget_copies();
}

}  // namespace torchamp::float8
