// The ops in plain ATen: the backend below the kernels, for devices, dtypes and layouts that they
// do not take.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <vector>

#include "backends/backward_end.h"
#include "backends/kernels.h"

namespace torchamp::aten {

/// Which positions of the lists to work on.
using Positions = std::vector<int64_t>;

/// Flags: found_inf and, if given, found_inf_per_tensor.
struct FlagTensors {
  at::Tensor found_inf;
  std::optional<at::Tensor> per_tensor;
};

void scale(const Positions& positions, at::TensorList inputs, at::TensorList outputs, double scale,
           const FlagTensors& flags);
void unscale(const Positions& positions, at::TensorList scaled_grads, at::TensorList master_grads,
             const at::Tensor& inv_scale, bool accumulate, const FlagTensors& flags);
void axpby(const Positions& positions, double a, at::TensorList x, double b, at::TensorList y,
           at::TensorList outputs, Checked checked, const FlagTensors& flags);
void check(const Positions& positions, at::TensorList tensors, const FlagTensors& flags);
/// The norm of each of `positions`, stacked: float32 of their number.
at::Tensor l2norms(const Positions& positions, at::TensorList tensors);
void copy_cast(const Positions& positions, at::TensorList master_params,
               at::TensorList model_params);
void update_scale(const at::Tensor& loss_scale, const at::Tensor& growth_tracker,
                  const at::Tensor& hysteresis_tracker, const at::Tensor& found_inf,
                  const ScaleUpdate::Rule& rule);

/// Of a ClipFactors, all but `norms` and `factors` are written.
void clip_factors(at::TensorList norms, at::TensorList factors, double max_norm,
                  const at::Tensor& norm, const at::Tensor& coefficient, at::TensorList clipped);
/// Writes the outcome of a Report, such as kClean, and the scale, float32 scalars.
void report_outcome(const at::Tensor& report, const at::Tensor& outcome,
                    const at::Tensor& loss_scale);
/// Ends a backward, and clears `flags`.
void finalize(const FlagTensors& flags, const BackwardEnd& end, const at::Tensor& loss_scale);

}  // namespace torchamp::aten
