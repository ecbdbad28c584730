// Stage 2: cast. A model's parameters and buffers, and its forward's inputs and outputs.
#pragma once

#include <torch/nn/module.h>
#include <torchamp/detail/export.h>
#include <torchamp/parts.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace torchamp {
/// @addtogroup cast
/// @{

/// The floating parameters whose dtype cast_module would change. Each once, even if several
/// modules share it.
TORCHAMP_API std::vector<at::Tensor> params_to_cast(torch::nn::Module& module, at::ScalarType dtype,
                                                    bool keep_batchnorm_fp32,
                                                    const std::vector<std::string>& keep_fp32 = {});

/// The floating buffers whose dtype cast_module would change, with their names in `module`.
TORCHAMP_API std::vector<std::pair<std::string, at::Tensor>> buffers_to_cast(
    torch::nn::Module& module, at::ScalarType dtype, bool keep_batchnorm_fp32,
    const std::vector<std::string>& keep_fp32 = {});

/// Casts floating parameters (in place), their grads and floating buffers to `dtype`.
/// `keep_batchnorm_fp32` excludes batch norms, `keep_fp32` the buffers and modules of these names
/// and those in them. The weights of recurrent modules are flattened again.
TORCHAMP_API void cast_module(torch::nn::Module& module, at::ScalarType dtype,
                              bool keep_batchnorm_fp32,
                              const std::vector<std::string>& keep_fp32 = {});

/// Flattens the weights of the recurrent modules in `module`, whose memory has changed.
TORCHAMP_API void flatten_recurrent(torch::nn::Module& module);

/// `value` with its floating tensors in `dtype`: tensors, and those among the Parts of `value`,
/// at any depth. The rest is unchanged.
template <class T>
T cast_floating(T value, at::ScalarType dtype) {
  for_each_tensor(value, [dtype](at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_floating_point()) tensor = tensor.to(dtype);
  });
  return value;
}

/// @}

namespace detail {

/// A tensor of an argument, and its cast copy as forward gets it.
struct CastTensor {
  at::Tensor given;
  at::Tensor cast;
  uint32_t version;
};

/// Replaces a floating `tensor` of another dtype by its copy in `dtype`, whose version counts, and
/// adds both to `casts`.
TORCHAMP_API void cast_argument(at::Tensor& tensor, at::ScalarType dtype,
                                std::vector<CastTensor>& casts);
/// The tensor that the caller gets for a `tensor` that forward has left in a cast argument: the
/// given one, with what was written to its copy, and another one in `dtype`.
TORCHAMP_API at::Tensor given_back(const at::Tensor& tensor, const std::vector<CastTensor>& casts,
                                   std::optional<at::ScalarType> dtype);

/// One argument of a call, of type T&&: cast for as long as the call lasts.
template <class T>
class Argument {
  using Value = std::decay_t<T>;
  static constexpr bool kIsCast = holds_tensors<Value>;
  static constexpr bool kIsWritable = kIsCast && std::is_same_v<T, Value&>;

 public:
  Argument(T&& given, std::optional<at::ScalarType> dtype) : given_(given) {
    if constexpr (kIsCast) {
      if (!dtype) return;
      value_.emplace(given);
      for_each_tensor(*value_, [&](at::Tensor& tensor) { cast_argument(tensor, *dtype, casts_); });
    }
  }

  /// As the caller gave it, cast.
  T&& get() {
    if constexpr (kIsCast) {
      if (value_) return static_cast<T&&>(*value_);
    }
    return static_cast<T&&>(given_);
  }

  /// Gives what the function wrote back to the caller.
  void give_back(std::optional<at::ScalarType> dtype) {
    if constexpr (kIsWritable) {
      if (!value_) return;
      for_each_tensor(*value_,
                      [&](at::Tensor& tensor) { tensor = given_back(tensor, casts_, dtype); });
      given_ = std::move(*value_);
    }
  }

 private:
  std::remove_reference_t<T>& given_;
  std::conditional_t<kIsCast, std::optional<Value>, std::monostate> value_;
  std::vector<CastTensor> casts_;
};

}  // namespace detail

}  // namespace torchamp
