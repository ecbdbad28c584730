// Models for inference: cast_for_inference.
#pragma once

#include <torchamp/initialize.h>

#include <memory>
#include <optional>
#include <utility>

namespace torchamp {
/// @addtogroup cast
/// @{

/// Casts a model once, in place, instead of at every call as autocast does: floating parameters and
/// buffers to `dtype`, batch norms only with keep_batchnorm_fp32 false. Calls of the
/// returned model cast floating inputs to `dtype` and outputs to cast_model_outputs; nullopt leaves
/// them in `dtype`. The model may have any floating dtype, be on any device, and may have been
/// trained at O0, O1 or O4. Load its weights first, and call eval() as usual.
///
/// Throws TypeError, and changes nothing, if `dtype` or cast_model_outputs is not floating, and
/// ValueError for a null pointer.
template <class M, detail::IfHandle<M> = 0>
Model<M> cast_for_inference(M model, c10::ScalarType dtype, bool keep_batchnorm_fp32 = true,
                            std::optional<c10::ScalarType> cast_model_outputs = c10::kFloat) {
  TORCH_CHECK_TYPE(c10::isFloatingType(dtype),
                   "cast_for_inference: expected dtype to be floating, got ", dtype);
  Options options = Options(OptLevel::O3).cast_model_type(dtype);
  options.cast_model_outputs(cast_model_outputs.value_or(dtype));
  const auto module = detail::module_of(model);
  TORCH_CHECK_VALUE(module != nullptr, "cast_for_inference: expected a module, got a null pointer");
  cast_module(*module, dtype, keep_batchnorm_fp32);
  auto amp = std::make_shared<Amp>(std::vector<std::shared_ptr<torch::nn::Module>>{},
                                   OptimizerRefs(), options);
  return {std::move(model), std::move(amp)};
}

/// Casts a module that the program keeps, which must outlive the result.
template <class M, class... Args, detail::IfModule<M> = 0>
auto cast_for_inference(M& module TORCHAMP_LIFETIMEBOUND, Args&&... args) {
  return cast_for_inference(detail::unowned(module), std::forward<Args>(args)...);
}

/// @}

}  // namespace torchamp
