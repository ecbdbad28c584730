#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torchamp/initialize.h>
#include <torchamp/monitor.h>
#include <torchamp/telemetry.h>

#include <deque>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "inspect/measure.h"

namespace torchamp {
namespace inspect {

/// The smallest normal number of float16.
constexpr double kSmallestNormal = 1.0 / (1 << 14);

/// The values of a step that the device is still to report.
struct Pending {
  int64_t step;
  at::Tensor values;  ///< float32 [4] on the host: loss scale, norm, shares
  std::shared_ptr<c10::Event> arrived;

  bool has_arrived() const { return arrived == nullptr || arrived->query(); }
};

at::Tensor measure(const at::Tensor& scale, const std::vector<detail::SteppedParam>& params) {
  std::vector<at::Tensor> norms, zeros, small;
  int64_t count = 0;
  for (const detail::SteppedParam& param : params) {
    const at::Tensor &grad = param.grad, &factor = param.factor;
    if (!grad.defined() || grad.is_sparse() || grad.numel() == 0) continue;
    const at::Tensor values = grad.to(at::kFloat);
    const at::Tensor scaled = factor.defined() ? values.abs() : values.abs() * scale;
    const at::Tensor norm = values.norm();
    norms.push_back(factor.defined() ? norm * factor : norm);
    zeros.push_back(values.eq(0).sum());
    small.push_back(values.ne(0).logical_and(scaled < kSmallestNormal).sum());
    count += grad.numel();
  }
  if (count == 0) {
    const at::Tensor nothing = at::full_like(scale, std::numeric_limits<double>::quiet_NaN());
    return at::stack({scale, nothing, nothing, nothing});
  }
  const auto share = [count](const std::vector<at::Tensor>& counts) {
    return at::stack(counts).sum().to(at::kFloat) / static_cast<double>(count);
  };
  return at::stack({scale, at::stack(norms).norm(), share(zeros), share(small)});
}

}  // namespace inspect

namespace {

using inspect::Pending;

/// Copies to the host without waiting.
Pending send(int64_t step, const at::Tensor& values) {
  if (!values.is_cuda()) return {step, values.cpu(), nullptr};
  const auto options = values.options().device(at::kCPU).pinned_memory(true);
  const at::Tensor host = at::empty(values.sizes(), options);
  host.copy_(values, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(values.device().type());
  auto arrived = std::make_shared<c10::Event>(values.device().type());
  arrived->record(guard.getStream(values.device()));
  return {step, host, arrived};
}

Monitor::Write csv_writer(const std::string& path) {
  const auto file = std::make_shared<std::ofstream>(path);
  TORCH_CHECK(*file, "Monitor: expected a path of a file to write, got ", path);
  file->precision(9);
  *file << "step,loss_scale,grad_norm,zero_grads,subnormal_grads,steps,skipped_steps" << std::endl;
  return [file](const StepValues& values) {
    *file << values.step << ',' << values.loss_scale << ',' << values.grad_norm << ','
          << values.zero_grads << ',' << values.subnormal_grads << ',' << values.steps << ','
          << values.skipped_steps << std::endl;
  };
}

}  // namespace

struct Monitor::Observer : detail::StepObserver {
  Observer(const Optimizer& of, Write to, int64_t each)
      : optimizer(of), write(std::move(to)), every(each) {}

  void before_step() override {
    const at::NoGradGuard no_grad;
    const int64_t step = count++;
    const at::Tensor scale = optimizer.amp()->loss_scaler().loss_scale_tensor();
    if (step % every == 0 && !detail::is_capturing(scale.device())) {
      pending.push_back(send(step, inspect::measure(scale, detail::stepped_params(optimizer))));
    }
    write_arrived();
  }

  void write_arrived() {
    while (!pending.empty() && pending.front().has_arrived()) {
      const Pending arrived = std::move(pending.front());
      pending.pop_front();
      const float* const values = arrived.values.const_data_ptr<float>();
      const Telemetry known = telemetry(optimizer);
      write({arrived.step, values[0], values[1], values[2], values[3], known.steps,
             known.skipped_steps});
    }
  }

  Optimizer optimizer;
  Write write;
  int64_t every;
  int64_t count = 0;
  std::deque<Pending> pending;
};

Monitor::Monitor(const Optimizer& optimizer, Write write, int64_t every) {
  TORCH_CHECK_VALUE(every >= 1, "Monitor: expected every to be at least 1, got ", every);
  telemetry(optimizer);  // counts from now on
  observer_ = std::make_shared<Observer>(optimizer, std::move(write), every);
  detail::observe(optimizer, observer_);
}

Monitor::Monitor(const Optimizer& optimizer, const std::string& path, int64_t every)
    : Monitor(optimizer, csv_writer(path), every) {}

Monitor::~Monitor() {
  try {
    close();
  } catch (const std::exception&) {
  }
}

void Monitor::close() {
  if (observer_ == nullptr) return;
  const auto observer = std::exchange(observer_, nullptr);
  if (detail::is_released(*observer->optimizer.amp())) return;
  for (const Pending& each : observer->pending) {
    if (each.arrived != nullptr) each.arrived->synchronize();
  }
  observer->write_arrived();
}

}  // namespace torchamp
