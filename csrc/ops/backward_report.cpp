#include "ops/backward_report.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "aten/fallback.h"
#include "math/report.h"
#include "ops/outside_capture.h"

namespace torchamp {
namespace {

using at::Tensor;

constexpr int64_t kFirstReports = 64;

Report& in(const Tensor& bytes) {
  return *static_cast<Report*>(bytes.mutable_data_ptr());
}

thread_local int reports_in_graphs = 0;

uint64 packed_in(const Tensor& bytes) {
  return __atomic_load_n(&in(bytes).outcome, __ATOMIC_ACQUIRE);
}

/// Reports in a ring. The host may be any number of backwards ahead of the device: the ring then
/// grows, so that nothing waits and no report is lost.
class Ring {
 public:
  explicit Ring(bool pinned) : options_(at::TensorOptions(at::kByte).pinned_memory(pinned)) {}

  std::shared_ptr<BackwardReport> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!find_free()) grow();
    const auto& report = reports_[next_];
    report->reset();
    return report;
  }

 private:
  bool find_free() {
    for (size_t i = 0; i < reports_.size(); ++i) {
      next_ = (next_ + 1) % reports_.size();
      const auto& report = reports_[next_];
      if (report.use_count() > 1 || !report->has_arrived()) continue;
      std::atomic_thread_fence(std::memory_order_acquire);  // after its last holder
      return true;
    }
    return false;
  }

  void grow() {
    const auto before = static_cast<int64_t>(reports_.size());
    const int64_t count = std::max(kFirstReports, before);
    const Tensor memory = at::empty({count, int64_t{sizeof(Report)}}, options_);
    for (int64_t i = 0; i < count; ++i) {
      reports_.push_back(std::make_shared<BackwardReport>(memory.select(0, i)));
    }
    next_ = before;
  }

  std::mutex mutex_;
  at::TensorOptions options_;
  std::vector<std::shared_ptr<BackwardReport>> reports_;
  size_t next_ = 0;
};

/// Never freed: a device may write until the process ends.
Ring& ring_for(at::Device device) {
  static Ring& pinned = *new Ring(true);
  static Ring& pageable = *new Ring(false);
  return device.is_cuda() ? pinned : pageable;
}

}  // namespace

BackwardReport::BackwardReport(const Tensor& bytes) : bytes_(bytes) {
  if (bytes_.is_cpu()) in(bytes_) = {packed_outcome(kClean, 0.0f), 0, {}};
}

/// The outcome comes last: it says that the names are there.
std::shared_ptr<const BackwardReport> BackwardReport::read_back() const {
  const auto read = ring_for(bytes_.device()).take();
  constexpr int64_t kOutcome = sizeof(Report::outcome), kEnd = sizeof(Report);
  for (const auto& [begin, end] : {std::pair{kOutcome, kEnd}, std::pair{int64_t{0}, kOutcome}}) {
    read->bytes_.slice(0, begin, end).copy_(bytes_.slice(0, begin, end), /*non_blocking=*/true);
  }
  last_read_ = read;
  return read;
}

float BackwardReport::outcome() const {
  if (bytes_.is_cpu()) return float_from_bits(static_cast<uint32>(packed_in(bytes_)));
  return last_read_ == nullptr ? kNotArrived : last_read_->outcome();
}

bool BackwardReport::has_arrived() const {
  return outcome() != kNotArrived;
}

bool BackwardReport::found_inf() const {
  return outcome() >= kOverflowed;
}

bool BackwardReport::found_bad_loss() const {
  return outcome() == kLossNotFinite;
}

float BackwardReport::loss_scale() const {
  if (last_read_ != nullptr) return last_read_->loss_scale();
  return float_from_bits(static_cast<uint32>(packed_in(bytes_) >> 32));
}

int64_t BackwardReport::nonfinite() const {
  if (last_read_ != nullptr) return last_read_->nonfinite();
  return found_inf() ? in(bytes_).nonfinite : 0;
}

std::vector<int64_t> BackwardReport::first_nonfinite() const {
  if (last_read_ != nullptr) return last_read_->first_nonfinite();
  const int32* const first = in(bytes_).first;
  return {first, first + std::min<int64_t>(nonfinite(), kNamedPositions)};
}

void BackwardReport::reset() {
  __atomic_store_n(&in(bytes_).outcome, uint64{0}, __ATOMIC_RELEASE);
}

ReportsInGraphs::ReportsInGraphs() {
  ++reports_in_graphs;
}

ReportsInGraphs::~ReportsInGraphs() {
  --reports_in_graphs;
}

bool ReportsInGraphs::are_on() {
  return reports_in_graphs > 0;
}

std::shared_ptr<BackwardReport> acquire_report(at::Device device) {
  if (device.is_meta()) return nullptr;
  if (!may_be_captured(device)) return ring_for(device).take();
  if (!ReportsInGraphs::are_on()) return nullptr;
  const auto options = at::TensorOptions(at::kByte).device(device);
  return std::make_shared<BackwardReport>(at::empty({int64_t{sizeof(Report)}}, options));
}

std::shared_ptr<const BackwardReport> report_scale(const Tensor& loss_scale) {
  const auto report = acquire_report(loss_scale.device());
  if (report == nullptr) return nullptr;
  aten::report_outcome(report->bytes(), at::full_like(loss_scale, kClean), loss_scale);
  return report;
}

bool may_be_captured(at::Device device) try {
  return is_capturing(device);
} catch (const std::runtime_error&) {
  return true;
}

}  // namespace torchamp
