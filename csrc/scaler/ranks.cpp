#include "scaler/ranks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>

#include <array>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "ops/unscale_pass.h"

namespace torchamp {
namespace {

using at::Tensor;

/// Below every state's values: of ranks that are in no group.
constexpr float kAbsent = std::numeric_limits<float>::lowest();

constexpr std::array kNamesOfState = {"loss scale", "growth tracker"};

/// float32 [size, 2], on the CPU: a row a rank.
Tensor gather(const Agreement& ranks, const ScaleState& state, at::Device device) {
  Tensor rows = at::full({ranks.size, int64_t{kNamesOfState.size()}}, kAbsent, at::kFloat);
  rows[ranks.rank].copy_(
      at::tensor({static_cast<float>(state.loss_scale), static_cast<float>(state.growth_tracker)}));
  rows = rows.to(device);
  ranks.all_reduce_max(rows);
  return rows.cpu();
}

/// The ranks by the value that they have.
std::map<float, std::vector<int64_t>> ranks_by(const Tensor& values) {
  std::map<float, std::vector<int64_t>> ranks;
  for (int64_t rank = 0; rank < values.size(0); ++rank) {
    const auto value = values[rank].item<float>();
    if (value != kAbsent) ranks[value].push_back(rank);
  }
  return ranks;
}

std::string list_of(const std::map<float, std::vector<int64_t>>& ranks_by) {
  std::vector<std::string> values;
  for (const auto& [value, ranks] : ranks_by) {
    values.push_back(
        c10::str(value, ranks.size() > 1 ? " on ranks " : " on rank ", c10::Join(", ", ranks)));
  }
  return c10::Join(" and ", values);
}

}  // namespace

void check_ranks(const char* function, const Agreement& ranks) {
  TORCH_CHECK_VALUE(0 <= ranks.rank && ranks.rank < ranks.size, function,
                    ": expected the rank of process_group to be below its size, ", ranks.size,
                    ", got ", ranks.rank);
}

void check_same_on_all_ranks(const Agreement& ranks, const ScaleState& state, at::Device device) {
  const Tensor rows = gather(ranks, state, device);
  for (size_t i = 0; i < kNamesOfState.size(); ++i) {
    const auto by_value = ranks_by(rows.select(1, static_cast<int64_t>(i)));
    TORCH_CHECK(by_value.size() == 1,
                "scale_loss: expected the ranks of process_group to have one ", kNamesOfState[i],
                ", got ", list_of(by_value), "; load the same state on every rank");
  }
}

std::pair<Tensor, std::shared_ptr<const BackwardReport>> end_on_all_ranks(const LossScaler& scaler,
                                                                          const Tensor& found_inf,
                                                                          const Tensor& loss_scale,
                                                                          const DynamicScale* moved,
                                                                          const Tensor& loss) {
  scaler.agreement().all_reduce_max(found_inf);
  const auto report = acquire_report(scaler.device());
  BackwardEnd end;
  end.found_before = found_inf;
  end.found_inf = at::empty_like(found_inf);
  end.inv_scale = at::empty_like(found_inf);
  end.per_tensor = at::empty({0}, found_inf.options().dtype(at::kByte));
  end.moved = moved;
  end.loss = loss;
  if (report != nullptr) end.report = report->bytes();
  UnscalePass(0).run(loss_scale, make_overflow_flags(0, scaler.device()), end);
  return {end.found_inf, report};
}

}  // namespace torchamp
