#include "autocast/ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cross_entropy_loss_ops.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss_nd.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "autocast/lists.h"
#include "autocast/open_autocast.h"
#include "autocast/rules.h"

namespace torchamp {
namespace {

namespace rules = autocast_rules;

c10::OperatorName operator_name(const std::string& name) {
  const auto dot = name.find('.');
  return {"aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)};
}

struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

/// O1's and O4's type; float32 in a scope of the program's own, where torch's rule casts to it.
std::optional<c10::ScalarType> type_under_o1(c10::DeviceType device_type) {
  return casting_to(device_type).value_or(c10::kFloat);
}

/// O4's type; at O1 none.
std::optional<c10::ScalarType> bfloat16_alone(c10::DeviceType device_type) {
  const auto dtype = casting_to(device_type);
  return dtype == c10::kBFloat16 ? dtype : std::nullopt;
}

at::Tensor float32_of(const at::Tensor& tensor) {
  return rules::is_castable(c10::kCUDA, tensor) ? tensor.to(c10::kFloat) : tensor;
}

/// Casts to float32 inside log_softmax where it can, which CUDA does without a copy of the scores.
at::Tensor cross_entropy(c10::DispatchKeySet keys, const at::Tensor& scores,
                         const at::Tensor& target, const std::optional<at::Tensor>& weight,
                         int64_t reduction, c10::SymInt ignore_index, double label_smoothing) {
  using Op = at::_ops::cross_entropy_loss;
  const c10::DispatchKey key = keys.highestPriorityTypeId();
  if (!casting_to(c10::kCUDA) || rules::is_inside_of_an_op()) {
    const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
    return Op::redispatch(below, scores, target, weight, reduction, std::move(ignore_index),
                          label_smoothing);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto wide_weight = weight ? std::optional(float32_of(*weight)) : std::nullopt;
  const bool has_classes = !target.is_floating_point() && target.sym_sizes() != scores.sym_sizes();
  if (!has_classes || label_smoothing != 0 || !rules::is_castable(c10::kCUDA, scores)) {
    return Op::call(float32_of(scores), float32_of(target), wide_weight, reduction,
                    std::move(ignore_index), label_smoothing);
  }
  const at::Tensor log_probs = at::log_softmax(scores, scores.dim() == 1 ? 0 : 1, c10::kFloat);
  return at::nll_loss_nd_symint(log_probs, target, wide_weight, reduction, std::move(ignore_index));
}

/// The kernels of one device type, registered for as long as this lives.
class Registration {
 public:
  explicit Registration(c10::DeviceType device_type)
      : key_(rules::key_of(device_type)),
        library_(torch::Library::IMPL, "aten", key_, __FILE__, __LINE__) {
    namespace lists = autocast_lists;
    add<rules::to_low_precision>(lists::kLowPrecision);
    if (device_type == c10::kCPU) {
      add<rules::to_low_precision>(lists::kRecurrent);
    } else {
      add<rules::to_bfloat16_in_one_piece, &bfloat16_alone>(lists::kRecurrent);
    }
    if (device_type == c10::kCUDA) library_.impl("cross_entropy_loss", &cross_entropy);
    add<rules::to_float32>(lists::kFloat32);
    add<rules::to_widest>(lists::kWidest);
    add<rules::to_widest_unless_promoted>(lists::kPromoted);
    add<rules::to_type_of_self>(lists::kTypeOfSelf);
    add<rules::refuse_16_bit_self>(lists::kFloat32InPlace);
    if (device_type == c10::kCPU) replace_cross_entropy();
  }

 private:
  template <rules::Rule rule, rules::LowPrecision low_precision = &casting_to, typename Names>
  void add(const Names& names) {
    for (const char* name : names) {
      const auto op = c10::Dispatcher::singleton().findSchema(operator_name(name));
      if (!op || op->hasKernelForDispatchKey(key_)) continue;
      library_.impl(
          name, torch::CppFunction::makeFromBoxedFunction<&rules::kernel<rule, low_precision>>());
    }
  }

  /// The only rule of torch that is replaced: on the CPU it casts what saturates in 16 bits. On
  /// CUDA torch refuses it.
  void replace_cross_entropy() {
    Silence warnings;
    const c10::WarningUtils::WarningHandlerGuard of_a_replaced_kernel(&warnings);
    library_.impl("binary_cross_entropy",
                  torch::CppFunction::makeFromBoxedFunction<
                      &rules::kernel<rules::refuse_16_bit, &type_under_o1>>());
  }

  c10::DispatchKey key_;
  torch::Library library_;
};

/// The state shared by all AutocastOps of a device type.
struct Shared {
  int holders = 0;
  std::unique_ptr<Registration> registration;
};

std::mutex shared_mutex;

/// Never destroyed: a model may be a global, which outlives what the first initialize makes.
Shared& shared_of(c10::DeviceType device_type) {
  static auto& shared = *new std::map<c10::DeviceType, Shared>;
  return shared[device_type];
}

}  // namespace

AutocastOps::AutocastOps(c10::DeviceType device_type) : device_type_(device_type) {
  if (device_type != c10::kCPU && device_type != c10::kCUDA) return;
  const std::lock_guard<std::mutex> lock(shared_mutex);
  Shared& shared = shared_of(device_type);
  if (!shared.registration) shared.registration = std::make_unique<Registration>(device_type);
  ++shared.holders;
}

AutocastOps::~AutocastOps() {
  if (device_type_ != c10::kCPU && device_type_ != c10::kCUDA) return;
  const std::lock_guard<std::mutex> lock(shared_mutex);
  Shared& shared = shared_of(device_type_);
  if (--shared.holders == 0) shared.registration.reset();
}

}  // namespace torchamp
