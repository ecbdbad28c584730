#include "float8/product.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/mm.h>
#include <torchamp/ops.h>

#include <atomic>

namespace torchamp::float8 {
namespace {

using at::Tensor;

std::atomic<int64_t> num_products{0}, num_casts{0};

bool is_float8_in_rows(const Tensor& matrix) {
  const auto dtype = matrix.scalar_type();
  return (dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2) && matrix.dim() == 2 &&
         matrix.is_contiguous();
}

void check_operands(const Operand& left, const Operand& right, at::ScalarType dtype,
                    const std::optional<Tensor>& bias) {
  const Tensor &a = left.rows, &b = right.rows;
  TORCH_CHECK(is_float8_in_rows(a) && is_float8_in_rows(b) && a.size(1) == b.size(1),
              "product: expected float8 matrices in rows of one length, got ", a.scalar_type(), " ",
              a.sizes(), " and ", b.scalar_type(), " ", b.sizes());
  TORCH_CHECK(a.size(1) % kMultiple == 0 && b.size(0) % kMultiple == 0,
              "product: expected K and N in multiples of 16, got ", a.size(1), " and ", b.size(0));
  TORCH_CHECK(a.scalar_type() == at::kFloat8_e4m3fn || b.scalar_type() == at::kFloat8_e4m3fn,
              "product: expected one of the matrices in Float8_e4m3fn, got two in ",
              a.scalar_type());
  TORCH_CHECK(!bias || c10::isReducedFloatingType(dtype),
              "product: expected no bias with a result in ", dtype, ", got one");
}

Tensor widened(const Operand& operand) {
  return operand.rows.to(at::kFloat).mul_(operand.scale);
}

}  // namespace

std::vector<Matrix> cast(at::TensorList matrices, at::ScalarType dtype, bool rows, bool columns) {
  const Tensor scales = ops::float8_scales(matrices, dtype);
  const auto [plain, transposed] = ops::float8_cast(matrices, scales, dtype, rows, columns);
  std::vector<Matrix> made(matrices.size());
  num_casts += static_cast<int64_t>(made.size());
  for (size_t i = 0; i < made.size(); ++i) {
    if (rows) made[i].rows = plain[i];
    if (columns) made[i].columns = transposed[i];
    made[i].scale = scales[static_cast<int64_t>(i)];
  }
  return made;
}

Tensor product(const Operand& left, const Operand& right, at::ScalarType dtype,
               const std::optional<Tensor>& bias) {
  check_operands(left, right, dtype, bias);
  ++num_products;
  if (left.rows.is_cuda()) {
    const auto added = bias ? std::optional(bias->to(dtype)) : std::nullopt;
    return at::_scaled_mm(left.rows, right.rows.t(), left.scale, right.scale, added, {}, dtype,
                          /*use_fast_accum=*/false);
  }
  Tensor sums = at::mm(widened(left), widened(right).t());
  if (bias) sums.add_(bias->to(at::kFloat));
  return sums.to(dtype);
}

Counts counts() {
  return {num_products, num_casts};
}

}  // namespace torchamp::float8
