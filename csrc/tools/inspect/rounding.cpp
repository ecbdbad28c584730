#include "inspect/rounding.h"

#include <ATen/Context.h>
#include <torchamp/detail/tools.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include "inspect/iteration.h"

namespace torchamp::inspect {
namespace {

/// The largest difference that does not matter, of the norms.
constexpr double kMaxError = 0.1;
/// At most so many elements of an output are compared.
constexpr int64_t kSamples = 4096;

/// Rounded inputs have been cast.
bool is_cast(const std::string& op) {
  return op == "to" || op == "_to_copy";
}

at::Tensor sample_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.reshape({-1});
  const int64_t step = flat.numel() / kSamples | 1;  // odd: it meets every column of 2**n
  return flat.slice(0, 0, {}, step).to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
}

bool is_off(const at::Tensor& found, const at::Tensor& expected) {
  if (!found.sizes().equals(expected.sizes())) return false;
  const at::Tensor both = found.isfinite().logical_and(expected.isfinite());
  const double difference = (found - expected).masked_select(both).norm().item<double>();
  return difference > kMaxError * expected.masked_select(both).norm().item<double>();
}

}  // namespace

class Rounding::OutputCollector : public CountedOps {
 public:
  const std::vector<Output>& outputs() const { return outputs_; }

 protected:
  void see(const WatchedOp& op) override {
    if (op.is_backward || is_cast(op.name)) return;
    const Unobserved guard;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& output : op.record.outputs()) {
      for (const auto& tensor : tensors_of(output)) {
        if (is_examined(tensor)) outputs_.emplace_back(named(op), sample_of(tensor));
      }
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Output> outputs_;
};

std::string Rounding::imprecision(OptLevel level) {
  const Properties properties = default_properties(level);
  if (!properties.cast_model_type) return "";
  const at::ScalarType dtype = *properties.cast_model_type;
  const auto buffers = buffers_to_cast(module_, dtype, *properties.keep_batchnorm_fp32);
  if (expected_.empty()) expected_ = outputs(dtype, {}, false);
  if (first_imprecise(dtype, buffers, true).empty()) return "";
  for (const auto& buffer : buffers) {
    const std::string op = first_imprecise(dtype, {buffer}, false);
    if (op.empty()) continue;
    return "precision: buffer '" + buffer.first + "' in 16 bits: " + op +
           " is off float32; Options::keep_fp32({\"" + buffer.first + "\"}) avoids it";
  }
  const std::string op = first_imprecise(dtype, {}, true);
  if (op.empty()) return "";
  return "precision: the inputs in 16 bits: " + op +
         " is off float32; integers, and members of a struct without amp_members, are not cast";
}

std::string Rounding::first_imprecise(at::ScalarType dtype, const NamedBuffers& rounded,
                                      bool rounds_inputs) const {
  const auto found = outputs(dtype, rounded, rounds_inputs);
  for (size_t i = 0; i < std::min(found.size(), expected_.size()); ++i) {
    const auto& [op, value] = found[i];
    if (op != expected_[i].first) return "";  // a branch by values
    if (is_off(value, expected_[i].second)) return op;
  }
  return "";
}

std::vector<Rounding::Output> Rounding::outputs(at::ScalarType dtype, const NamedBuffers& rounded,
                                                bool rounds_inputs) const {
  const Unchanged guard(module_);
  const at::NoTF32Guard no_tf32;
  const auto model = initialize_(Options(OptLevel::O0).verbosity(0));
  {
    const at::NoGradGuard no_grad;
    for (const auto& buffer : rounded) buffer.second.copy_(buffer.second.to(dtype));
  }
  std::optional<detail::RoundArguments> arguments;
  if (rounds_inputs) arguments.emplace(dtype);
  const auto collector = std::make_shared<OutputCollector>();
  run_iteration(module_, model, 1, collector);
  return collector->outputs();
}

}  // namespace torchamp::inspect
