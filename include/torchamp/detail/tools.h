// Functions of the library that the tools in csrc/tools use, and programs do not.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace torchamp {
class Amp;
}

namespace torchamp::detail {

/// loss.backward(), in which no thread casts.
TORCHAMP_API void backward_without_casts(const at::Tensor& loss);

/// Whether the program has called a model of `amp`.
TORCHAMP_API bool is_called(const Amp& amp);

/// Linears in float8: the name, the weight [N, K], and how many rows its last input had.
using Float8Products = std::vector<std::tuple<std::string, at::Tensor, int64_t>>;

/// Those of `amp` that the program has called, in module order.
TORCHAMP_API Float8Products float8_products(const Amp& amp);

/// The next products cast to float8 again, as after a step.
TORCHAMP_API void forget_float8_copies(const Amp& amp);

/// While it lives, models called in this thread get floating arguments in their own dtype, with
/// the values that a cast to `dtype` leaves.
class TORCHAMP_API RoundArguments {
 public:
  explicit RoundArguments(at::ScalarType dtype);
  ~RoundArguments();
  RoundArguments(const RoundArguments&) = delete;
  RoundArguments& operator=(const RoundArguments&) = delete;
};

}  // namespace torchamp::detail
