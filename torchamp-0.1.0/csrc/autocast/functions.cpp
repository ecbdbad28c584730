#include <torchamp/functions.h>

namespace torchamp::detail {
namespace {

/// The dtype that O1 casts `tensor` to; empty if it does not cast it.
std::optional<c10::ScalarType> level_type(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const auto dtype = tensor.scalar_type();
  if (dtype != c10::kFloat && dtype != c10::kHalf && dtype != c10::kBFloat16) return {};
  return casting_to(tensor.device().type());
}

}  // namespace

void ArgumentCast::look_at(const at::Tensor& tensor) {
  has_float32_ |= level_type(tensor) && tensor.scalar_type() == c10::kFloat;
}

at::Tensor ArgumentCast::cast(const at::Tensor& tensor) const {
  const auto low_precision = level_type(tensor);
  if (!low_precision) return tensor;
  switch (kind_) {
    case FunctionCast::kLowPrecision:
      return tensor.to(*low_precision);
    case FunctionCast::kBFloat16:
      return tensor.to(c10::kBFloat16);
    case FunctionCast::kFloat32:
      return tensor.to(c10::kFloat);
    case FunctionCast::kWidest:
      return has_float32_ ? tensor.to(c10::kFloat) : tensor;
  }
  return tensor;
}

}  // namespace torchamp::detail
