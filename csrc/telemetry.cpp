#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torchamp/amp_state.h>
#include <torchamp/optimizer.h>

#include "cuda/stream.h"
#include "late_report.h"

namespace torchamp {
namespace {

using at::Tensor;

std::optional<c10::Event> recorded_event(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  c10::Event event(device.type());
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

bool is_captured(at::Device device) {
  return device.is_cuda() && cuda::is_capturing(cuda::current_queue(device.index()));
}

}  // namespace

void LateReport::note(const Tensor& skip, const std::vector<LossScaler>& scalers) {
  const Tensor& scale = scalers.front().loss_scale_tensor();
  const at::Device device = scale.device();
  if (is_captured(device)) return;
  std::vector<Tensor> numbers{(skip.defined() ? skip : at::zeros_like(scale)).reshape({1})};
  for (const LossScaler& scaler : scalers) {
    numbers.push_back(scaler.loss_scale_tensor().reshape({1}).to(device));
  }
  numbers.front() = numbers.front().to(device);
  arriving_.push_back({at::cat(numbers).to(at::kCPU, /*non_blocking=*/true), {}});
  arriving_.back().event = recorded_event(device);
  known();
}

const Telemetry& LateReport::known() {
  const auto is_there = [](const Arriving& each) { return !each.event || each.event->query(); };
  for (; !arriving_.empty() && is_there(arriving_.front()); arriving_.pop_front()) {
    take(arriving_.front().numbers);
  }
  return known_;
}

void LateReport::take(const Tensor& numbers) {
  const float* const values = numbers.const_data_ptr<float>();
  known_.steps += 1;
  known_.stepped = values[0] == 0.0f;
  known_.skipped_steps += !*known_.stepped;
  known_.loss_scales.assign(values + 1, values + numbers.numel());
}

Telemetry telemetry(const Optimizer& optimizer) {
  auto& report = optimizer.amp()->optimizers()[optimizer.index()].late_report;
  if (report == nullptr) report = std::make_shared<LateReport>();
  return report->known();
}

}  // namespace torchamp
