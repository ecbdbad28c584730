// What ops need to be plain ATen, below the kernels, for devices, dtypes and layouts that they do
// not take.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "backends/backward_end.h"
#include "backends/kernels.h"

namespace torchamp::aten {

/// Which positions of the lists to work on.
using Positions = std::vector<int64_t>;

/// The dtype that an op on `inputs` computes in: float64 if one of them is, else float32.
at::ScalarType wide_type(std::initializer_list<at::Tensor> inputs);

/// found_inf, undefined if nothing is checked, and, if given, found_inf_per_tensor.
struct FlagTensors {
  at::Tensor found_inf;
  std::optional<at::Tensor> per_tensor;

  /// Sets them if `tensor`, at `position` of its list, is not finite.
  void check(const at::Tensor& tensor, int64_t position) const;
  /// Writes an output, which is checked if it is 16-bit.
  void write(const at::Tensor& result, const at::Tensor& output, int64_t position) const;
};

void unscale(const at::Tensor& scaled_grad, const at::Tensor& master_grad, int64_t position,
             const at::Tensor& inv_scale, bool accumulate, const FlagTensors& flags);
void update_scale(const at::Tensor& loss_scale, const at::Tensor& growth_tracker,
                  const at::Tensor& found_inf, const ScaleUpdate::Rule& rule);

/// Writes all of a ClipFactors but `norms` and `factors`.
void clip_factors(at::TensorList norms, at::TensorList factors, double max_norm,
                  const at::Tensor& norm, const at::Tensor& coefficient, at::TensorList clipped);
/// Writes the outcome of a Report, such as kClean, and the scale, float32 scalars.
void report_outcome(const at::Tensor& report, const at::Tensor& outcome,
                    const at::Tensor& loss_scale);
/// Ends a backward, and clears `flags`.
void finalize(const FlagTensors& flags, const BackwardEnd& end, const at::Tensor& loss_scale);

}  // namespace torchamp::aten
