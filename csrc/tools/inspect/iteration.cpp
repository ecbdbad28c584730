#include "inspect/iteration.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torchamp/detail/tools.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <unordered_set>

#include "inspect/same_dropout.h"

namespace torchamp::inspect {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

/// The fastest of so many iterations is timed, or of as many as this time allows.
constexpr int kTimed = 3;
constexpr Milliseconds kEnough{1000};

/// When the device has nothing left to do.
Clock::time_point synchronized(const at::Tensor& on_device) {
  const at::Device device = on_device.device();
  if (!device.is_cpu()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
  }
  return Clock::now();
}

void drop_grads(const torch::nn::Module& module) {
  for (const auto& param : module.parameters()) param.mutable_grad().reset();
}

at::Tensor value_of(const at::Tensor& loss) {
  TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1 && loss.requires_grad(),
                    "preflight: expected a loss of one element with a grad_fn, got ",
                    loss.defined() ? "one of sizes " + c10::str(loss.sizes()) : "none",
                    loss.defined() && !loss.requires_grad() ? " without one" : "");
  return loss;
}

}  // namespace

std::string named(const WatchedOp& op) {
  return op.scope.empty() ? op.name : op.name + " of \"" + op.scope + '"';
}

Unchanged::Unchanged(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::unordered_set<const c10::TensorImpl*> seen;
  std::unordered_set<c10::Device> devices;
  const auto keep = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) return;
    saved_.push_back({tensor, tensor.variable_data(), tensor.clone(), tensor.grad()});
    devices.insert(tensor.device());
  };
  for (const auto& param : module.parameters()) keep(param);
  for (const auto& buffer : module.buffers()) keep(buffer);
  devices.insert(c10::Device(c10::kCPU));
  for (const auto device : devices) {
    if (!device.is_cpu() && !device.is_cuda()) continue;
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    random_.push_back({generator, generator.get_state()});
  }
}

Unchanged::~Unchanged() {
  const at::NoGradGuard no_grad;
  for (auto& saved : saved_) {
    saved.tensor.mutable_grad().reset();
    saved.tensor.set_data(saved.data);
    saved.data.copy_(saved.value);
    saved.tensor.mutable_grad() = saved.grad;
  }
  for (auto& random : random_) {
    const std::lock_guard<std::mutex> lock(random.generator.mutex());
    random.generator.set_state(random.state);
  }
}

bool Unchanged::is_written(const at::Tensor& tensor) const {
  return std::any_of(saved_.begin(), saved_.end(), [&tensor](const SavedTensor& saved) {
    return saved.tensor.is_same(tensor) && !at::equal(tensor, saved.value);
  });
}

bool Outcome::has_finite_loss() const {
  return std::isfinite(loss);
}

bool Outcome::is_finite() const {
  return has_finite_loss() && std::all_of(grads.begin(), grads.end(), [](const auto& named) {
           return named.second.isfinite().all().template item<bool>();
         });
}

Outcome run_iteration(torch::nn::Module& module, const detail::ModelAtLevel& model, double scale,
                      const std::shared_ptr<OpObserver>& observer) {
  Outcome outcome;
  drop_grads(module);
  try {
    const at::AutoGradMode grad_mode(true);
    const OpWatch watch(observer, "preflight");
    const SameDropout same_dropout;
    const at::Tensor loss = value_of(model.loss());
    {
      const Unobserved guard;
      outcome.loss = loss.detach().to(at::kDouble).item<double>();
    }
    detail::backward_without_casts(loss.to(at::kFloat) * scale);
  } catch (...) {
    outcome.error = std::current_exception();
  }
  outcome.note = SameDropout::note();
  const at::NoGradGuard no_grad;
  for (const auto& param : module.named_parameters()) {
    const at::Tensor& grad = param.value().grad();
    if (grad.defined()) outcome.grads[param.key()] = grad.to(at::kFloat) / scale;
  }
  return outcome;
}

std::optional<double> time_iteration(torch::nn::Module& module, const detail::ModelAtLevel& model,
                                     double scale) {
  const at::AutoGradMode grad_mode(true);
  const at::Tensor param = module.parameters().front();
  Milliseconds fastest = Milliseconds::max(), all{0};
  try {
    for (int i = 0; i < kTimed && all < kEnough; ++i) {
      drop_grads(module);
      detail::forget_float8_copies(*model.amp);
      const auto start = synchronized(param);
      const at::Tensor loss = value_of(model.loss());
      detail::backward_without_casts(loss.to(at::kFloat) * scale);
      const Milliseconds taken = synchronized(param) - start;
      fastest = std::min(fastest, taken);
      all += taken;
    }
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return fastest.count();
}

void FailureFinder::after(const WatchedOp& op, const at::ObserverContext* begun) {
  if (std::uncaught_exceptions() > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (raised_.empty()) raised_ = named(op);
    return;
  }
  FirstOverflow::after(op, begun);
}

}  // namespace torchamp::inspect
