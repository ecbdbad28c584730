// The ops of mixed precision on lists of tensors, fused over each list.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <optional>
#include <tuple>
#include <vector>

namespace torchamp::ops {
/// @addtogroup ops
///
/// Rules common to all of them:
/// - The tensors of one call are on one device. A list may mix float32, float16, bfloat16 and
///   float64, and any sizes; tensors at the same position of different lists have the same sizes.
///   Undefined tensors (None) and empty ones are skipped. An op may overwrite its inputs, but no
///   part of one.
/// - Arithmetic is in float32 (in float64 where an input is float64), rounded once to the output's
///   dtype. The ops of float8 take no float64.
/// - Nothing waits for the device. Ops report overflows in `found_inf`, a float32 tensor of
///   one element that is set to 1 and never cleared, and to `found_inf_per_tensor`, uint8 with one
///   element per position of the lists.
/// - A wrong argument throws before anything is written, and the message names the op, the
///   argument, the expected and the actual value.
///
/// @{

/// outputs = inputs · scale. found_inf is set by a non-finite input, and by a 16-bit output that
/// overflows.
TORCHAMP_API void scale(at::TensorList inputs, at::TensorList outputs, double scale,
                        const at::Tensor& found_inf,
                        const std::optional<at::Tensor>& found_inf_per_tensor = {});

/// master_grads = scaled_grads · inv_scale, or master_grads += scaled_grads · inv_scale with
/// `accumulate`. `inv_scale` is a float32 tensor of one element on the device. found_inf is set by
/// a non-finite scaled grad, and by a 16-bit master grad that overflows; what is already in
/// master_grads is not checked.
TORCHAMP_API void unscale(at::TensorList scaled_grads, at::TensorList master_grads,
                          const at::Tensor& inv_scale, const at::Tensor& found_inf,
                          bool accumulate = false,
                          const std::optional<at::Tensor>& found_inf_per_tensor = {});

/// Which inputs of axpby are checked for found_inf.
enum class Check { kX = 1, kY = 2, kBoth = 3 };

/// outputs = a · x + b · y. found_inf is set by a non-finite element of the `checked` inputs, and
/// by a 16-bit output that is not finite.
TORCHAMP_API void axpby(double a, at::TensorList x, double b, at::TensorList y,
                        at::TensorList outputs, const at::Tensor& found_inf,
                        Check checked = Check::kBoth,
                        const std::optional<at::Tensor>& found_inf_per_tensor = {});

/// Sets found_inf if any element is infinite or NaN.
TORCHAMP_API void check(at::TensorList tensors, const at::Tensor& found_inf,
                        const std::optional<at::Tensor>& found_inf_per_tensor = {});

/// check() and the norm of l2norm() in one pass.
TORCHAMP_API at::Tensor check_l2norm(at::TensorList tensors, const at::Tensor& found_inf,
                                     const std::optional<at::Tensor>& found_inf_per_tensor = {});

/// The Euclidean norm of all elements, a float32 scalar; with `per_tensor` also that of
/// each position, float32 of the list's length (0 for undefined and empty tensors), else an
/// undefined tensor. Squares are computed in float32. The result does not depend on the number of
/// threads. `skip`: a float32 scalar; unless 0 the norms are 0, whatever the elements are.
TORCHAMP_API std::tuple<at::Tensor, at::Tensor> l2norm(at::TensorList tensors,
                                                       bool per_tensor = false,
                                                       const std::optional<at::Tensor>& skip = {});

/// model_params = master_params, rounded to each model parameter's dtype.
TORCHAMP_API void copy_cast(at::TensorList master_params, at::TensorList model_params);

/// What brings each tensor within float8: 2^⌈log2(m / M)⌉, where m is its largest magnitude and M
/// the largest number of `dtype`, 448 of float8_e4m3fn and 57344 of float8_e5m2; 2⁻¹²⁶ where that
/// is less; 1 for tensors of zeros, empty and undefined ones; NaN where an element is not finite.
/// tensors: float32, float16 or bfloat16. Returns float32 of the list's length, on their device.
TORCHAMP_API at::Tensor float8_scales(at::TensorList tensors, at::ScalarType dtype);

/// Each matrix, divided by its scale, in float8: as it is, [M, K], unless not `plain`; and
/// `transposed`, [K, M rounded up to a multiple of 16], padded with zeros. Both are contiguous;
/// what is not asked for is an empty list. Rounds to nearest even; what is beyond the largest
/// number of `dtype` becomes that number, and NaN stays NaN. tensors: two-dimensional float32,
/// float16 or bfloat16 of any strides, none undefined. scales: powers of two, as those of
/// float8_scales(), or NaN.
TORCHAMP_API std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> float8_cast(
    at::TensorList tensors, const at::Tensor& scales, at::ScalarType dtype, bool plain = true,
    bool transposed = true);

/// The update rule of dynamic loss scaling. The default is apex.amp's, {2, 0.5, 2000, min, max},
/// with a floor of 2⁻¹⁰ and a recovery from it.
///
/// Where min_scale is 1 or less, an overflow at min_scale is a collapse, after which apex's rule
/// would take growth_interval clean backwards for each doubling. Here the scale then grows with
/// every clean backward until the third overflow, or until it reaches max_scale. growth_tracker is
/// negative meanwhile.
struct ScaleRule {
  double growth_factor = 2.0;      ///< the scale is multiplied by this when it grows
  double backoff_factor = 0.5;     ///< and when it backs off
  int64_t growth_interval = 2000;  ///< clean backwards in a row until it grows
  double min_scale = 0x1p-10;  ///< the scale never goes below this, nor below the smallest normal
                               ///< float
  double max_scale = 16777216.0;  ///< nor above this, nor above 2¹²⁷
};

/// After a backward: backs `loss_scale` off if found_inf is not 0, else counts a clean backward and
/// grows the scale after growth_interval of them. loss_scale: float32, growth_tracker: int32,
/// found_inf: float32; one element each.
TORCHAMP_API void update_scale(const at::Tensor& loss_scale, const at::Tensor& growth_tracker,
                               const at::Tensor& found_inf, const ScaleRule& rule = {});

/// @}

}  // namespace torchamp::ops
