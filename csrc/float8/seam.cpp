#include <ATen/TracerMode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>
#include <torchamp/logging.h>

#include <atomic>
#include <mutex>

#include "autocast/open_autocast.h"
#include "autocast/rules.h"
#include "float8/linear.h"

namespace torchamp::float8 {
namespace {

using at::Tensor;
using c10::DispatchKey;

/// The ops under way within a transform of torch.func. It calls them again on what it unwraps,
/// where nothing else tells of it.
thread_local int inside_transforms = 0;

/// A scope in which an op, called again, is what it is without float8.
class Plain {
 public:
  Plain() : is_transform_(is_in_transform()) { inside_transforms += is_transform_; }
  ~Plain() { inside_transforms -= is_transform_; }
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;

  static bool is_in_transform() {
    const auto included = c10::impl::tls_local_dispatch_key_set().included_;
    return included.has(DispatchKey::FuncTorchDynamicLayerBackMode);
  }

 private:
  bool is_transform_;
  c10::impl::ExcludeDispatchKeyGuard guard_{kFloat8Key};
};

/// Nodes of a backward compute without grads, but for what a checkpoint computes again.
bool is_of_a_node() {
  return torch::autograd::get_current_node() != nullptr && !at::GradMode::is_enabled();
}

bool is_suspended() {
  return !is_float8_on() || inside_transforms > 0 || Plain::is_in_transform() ||
         at::tracer::impl::is_dispatch_enabled() || autocast_rules::is_inside_of_an_op() ||
         is_of_a_node();
}

bool has_forward_grad(const Tensor& tensor) {
  return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
}

bool is_floating(const Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return dtype == at::kFloat || c10::isReducedFloatingType(dtype);
}

/// Whether a graph of torch.compile is being made of it.
bool is_fake(const Tensor& tensor) {
  return tensor.key_set().has(DispatchKey::Python) && tensor.has_storage() &&
         tensor.unsafeGetTensorImpl()->unsafe_storage().device_type() == at::kMeta;
}

std::atomic<bool> tells_of_graph{false};

void tell_of_graph() {
  if (!tells_of_graph.exchange(false)) return;
  log_message(LogLevel::kInfo,
              "float8: compiled graphs compute linears in bfloat16; torchao's layers are in float8 "
              "there");
}

/// The dtype of a product's output; empty where it is not in float8.
std::optional<at::ScalarType> output_type(const Tensor& input, const Found& found) {
  const Tensor& weight = found.weights->param(found.index);
  if (!found.weights->follows_casts()) {
    const bool fits = input.scalar_type() == weight.scalar_type();
    return fits ? std::optional(input.scalar_type()) : std::nullopt;
  }
  return is_floating(input) ? casting_to(input.device().type()) : std::nullopt;
}

/// Empty where the product stays what it is without float8.
std::optional<Call> call_of(const Tensor& input, const Tensor& weight,
                            const std::optional<Tensor>& bias, bool is_linear) {
  if (is_suspended()) return {};
  if (is_fake(weight)) tell_of_graph();
  Call call{find(weight), is_linear, {}};
  if (call.found.weights == nullptr) return {};
  const int64_t k = weight.size(is_linear ? 1 : 0), n = weight.size(is_linear ? 0 : 1);
  const bool fits = is_plain(input) && input.dim() > 0 && input.size(-1) == k &&
                    input.numel() > 0 && input.device() == weight.device();
  const bool adds = !bias || (bias->dim() == 1 && bias->size(0) == n && is_floating(*bias) &&
                              bias->device() == weight.device());
  if (!fits || !adds || has_forward_grad(input) || has_forward_grad(weight)) return {};
  if (bias && has_forward_grad(*bias)) return {};
  const auto dtype = output_type(input, call.found);
  if (!dtype) return {};
  call.dtype = *dtype;
  return call;
}

/// In float8 where `may_be` and the weight is known, else what `plain` gives.
template <class Op>
Tensor computed(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                bool is_linear, bool may_be, const Op& plain) {
  const auto call = may_be ? call_of(input, weight, bias, is_linear) : std::nullopt;
  if (call) return linear(input, weight, bias, *call);
  const Plain scope;
  return plain();
}

Tensor linear_kernel(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
  const auto added = bias && bias->defined() ? bias : std::nullopt;
  return computed(input, weight, added, /*is_linear=*/true, true,
                  [&] { return at::linear(input, weight, bias); });
}

Tensor addmm_kernel(const Tensor& bias, const Tensor& input, const Tensor& matrix,
                    const at::Scalar& beta, const at::Scalar& alpha) {
  const bool is_sum = input.dim() == 2 && beta.equal(1) && alpha.equal(1);
  return computed(input, matrix, bias, /*is_linear=*/false, is_sum,
                  [&] { return at::addmm(bias, input, matrix, beta, alpha); });
}

Tensor matmul_kernel(const Tensor& input, const Tensor& matrix) {
  return computed(input, matrix, std::nullopt, /*is_linear=*/false, true,
                  [&] { return at::matmul(input, matrix); });
}

Tensor mm_kernel(const Tensor& input, const Tensor& matrix) {
  return computed(input, matrix, std::nullopt, /*is_linear=*/false, input.dim() == 2,
                  [&] { return at::mm(input, matrix); });
}

struct Kernels {
  Kernels() {
    for_others.fallback(torch::CppFunction::makeFallthrough());
    products.impl("linear", &linear_kernel);
    products.impl("addmm", &addmm_kernel);
    products.impl("matmul", &matmul_kernel);
    products.impl("mm", &mm_kernel);
  }

  torch::Library for_others{torch::Library::IMPL, "_", kFloat8Key, __FILE__, __LINE__};
  torch::Library products{torch::Library::IMPL, "aten", kFloat8Key, __FILE__, __LINE__};
};

}  // namespace

void tell_of_next_graph() {
  tells_of_graph = true;
}

void register_kernels() {
  static std::mutex mutex;
  static const Kernels* kernels = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (kernels != nullptr) return;
  TORCH_CHECK(!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kFloat8Key),
              "initialize: expected torch's dispatch key ", kFloat8Key,
              " to be free for float8, got a library that has it; leave float8 out, or that "
              "library");
  kernels = new Kernels;
}

}  // namespace torchamp::float8
