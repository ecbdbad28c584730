#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torchamp/ops.h>

#include "ops/checks.h"
#include "ops/device_kernels.h"
#include "ops/dispatch.h"
#include "ops/plan_builder.h"

namespace torchamp::ops {
namespace {

using at::ScalarType;
using at::Tensor;
using at::TensorList;
using Tensors = std::vector<Tensor>;
using Casts = std::tuple<Tensors, Tensors>;

constexpr const char* kScalesSchema =
    "float8_scales(Tensor[] tensors, *, ScalarType dtype) -> Tensor";
constexpr const char* kCastSchema =
    "float8_cast(Tensor[] tensors, Tensor scales, *, ScalarType dtype, bool plain=True, "
    "bool transposed=True) -> (Tensor[], Tensor[])";

Float8 format_of(ScalarType dtype) {
  return dtype == at::kFloat8_e4m3fn ? Float8::kE4m3 : Float8::kE5m2;
}

void check_dtype(const char* op, ScalarType dtype) {
  TORCH_CHECK_TYPE(dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2, op,
                   ": expected dtype to be float8_e4m3fn or float8_e5m2, got ", dtype);
}

void check_dtypes(const char* op, TensorList tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK_TYPE(!tensors[i].defined() || kernel_dtype(tensors[i]), op, ": expected tensors[",
                     i, "] to be float16, bfloat16 or float32, got ", tensors[i].scalar_type());
  }
}

/// float8_scale() of the bits of magnitudes.
Tensor scale_in_aten(const Tensor& magnitudes, Float8 format) {
  const int64_t largest = largest_exponent(format);
  const Tensor above = magnitudes.add(0x1fffff).bitwise_right_shift(kFloatMantissa);
  const Tensor bits = above.sub(largest).clamp_min(1).bitwise_left_shift(kFloatMantissa);
  const Tensor scale = bits.view(at::kFloat).masked_fill(magnitudes.eq(0), 1);
  return scale.masked_fill(magnitudes.ge(0x7f800000), NAN);
}

Tensor largest_in_aten(const Tensor& tensor) {
  return tensor.to(at::kFloat).abs().view(at::kInt).max();
}

void scales_on_cuda(cuda::Queue queue, const Plan& plan, Float8 format, int32 count,
                    float* scales) {
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(queue.device));
  const Tensor workspace =
      at::zeros({count + 1}, at::TensorOptions().device(device).dtype(at::kInt));
  cuda::float8_scales(queue, plan, format, count, scales,
                      reinterpret_cast<uint32*>(workspace.mutable_data_ptr<int32>()));
}

Tensor run_scales(TensorList tensors, ScalarType dtype) {
  const DeviceKernels kernels(first_defined(tensors).device());
  const Work work = build_plan("float8_scales", {{"tensors", tensors}}, kernels);
  const auto count = static_cast<int32>(tensors.size());
  const auto options = at::TensorOptions().device(kernels.device()).dtype(at::kFloat);
  Tensor scales =
      work.plan.tensors() > 0 ? at::empty({count}, options) : at::ones({count}, options);
  if (work.plan.tensors() > 0) {
    kernels.run(cpu::float8_scales, scales_on_cuda, work.plan, format_of(dtype), count,
                scales.mutable_data_ptr<float>());
  }
  for (const int64_t i : work.rest) {
    scales.select(0, i).copy_(scale_in_aten(largest_in_aten(tensors[i]), format_of(dtype)));
  }
  return scales;
}

Tensor scales_on_meta(TensorList tensors, ScalarType) {
  const auto count = static_cast<int64_t>(tensors.size());
  return at::empty({count}, first_defined(tensors).options().dtype(at::kFloat));
}

void check_matrices(TensorList tensors, const Tensor& scales) {
  constexpr const char* kOp = "float8_cast";
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK_TYPE(tensors[i].defined(), kOp, ": expected tensors[", i,
                     "] to be a tensor, got none");
  }
  check_dtypes(kOp, tensors);
  TORCH_CHECK_TYPE(scales.defined(), kOp, ": expected scales to be a tensor, got none");
  check_memory(kOp, "scales", scales, /*takes_meta=*/is_meta(scales));
  check_array(kOp, "scales", scales, at::kFloat, scales.device(), "tensor", tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_memory(kOp, "tensors", i, tensors[i],
                 /*takes_meta=*/is_meta(scales) || tensors[i].device().is_meta());
    TORCH_CHECK(tensors[i].dim() == 2, kOp, ": expected tensors[", i,
                "] to have two dimensions, got sizes ", tensors[i].sym_sizes());
    TORCH_CHECK(tensors[i].device() == scales.device(), kOp, ": expected tensors[", i,
                "] to be on ", scales.device(), ", got ", tensors[i].device());
  }
}

/// Uninitialized outputs.
Casts outputs_for(TensorList tensors, ScalarType dtype, bool plain, bool transposed) {
  Casts casts;
  for (const Tensor& tensor : tensors) {
    const c10::SymInt rows = tensor.sym_size(0), columns = tensor.sym_size(1);
    const auto options = tensor.options().dtype(dtype);
    if (plain) std::get<0>(casts).push_back(at::empty_symint({rows, columns}, options));
    if (!transposed) continue;
    const c10::SymInt length = (rows + (kRowMultiple - 1)) / kRowMultiple * kRowMultiple;
    std::get<1>(casts).push_back(at::empty_symint({columns, length}, options));
  }
  return casts;
}

void cast_in_aten(const Tensor& matrix, const Tensor& scale, const Tensor& plain,
                  const Tensor& transposed) {
  const ScalarType dtype = (plain.defined() ? plain : transposed).scalar_type();
  const double largest = 1.75 * static_cast<double>(1 << largest_exponent(format_of(dtype)));
  const Tensor divided = matrix.to(at::kFloat).mul(scale.reciprocal());
  const Tensor cast = divided.clamp(-largest, largest).to(dtype);
  if (plain.defined()) plain.copy_(cast);
  if (!transposed.defined()) return;
  const Tensor bytes = transposed.view(at::kByte);
  bytes.zero_();
  bytes.narrow(1, 0, matrix.size(0)).copy_(cast.t().view(at::kByte));
}

/// Whether a kernel reads the matrix as it is: rows of neighbouring elements.
bool has_rows(const Tensor& matrix) {
  return !matrix.is_neg() && (matrix.size(1) == 1 || matrix.stride(1) == 1);
}

/// What the kernels work on, and the memory of what they do not take as it is.
struct CastWork {
  Plan plan;
  std::vector<Matrix> matrices;
  Tensors copies;

  void add(const Tensor& given, int32 position, void* plain, void* transposed) {
    const Tensor& matrix =
        has_rows(given) ? given : copies.emplace_back(given.resolve_neg().contiguous());
    plan.data.insert(plan.data.end(), {matrix.data_ptr(), plain, transposed});
    plan.dtypes.insert(plan.dtypes.end(), {*kernel_dtype(matrix), {}, {}});
    plan.offsets.push_back(plan.elements() + tiles(matrix.size(0)) * tiles(matrix.size(1)));
    plan.positions.push_back(position);
    plan.rows.push_back(static_cast<int32>(matrices.size()));
    matrices.push_back({matrix.size(0), matrix.size(1), matrix.stride(0)});
  }
};

Casts run_cast(TensorList tensors, const Tensor& scales, ScalarType dtype, bool plain,
               bool transposed) {
  const DeviceKernels kernels(scales.device());
  Casts casts = outputs_for(tensors, dtype, plain, transposed);
  CastWork work;
  work.plan.lists = 3;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() == 0) continue;
    const Tensor to = plain ? std::get<0>(casts)[i] : Tensor();
    const Tensor to_transposed = transposed ? std::get<1>(casts)[i] : Tensor();
    if (!kernels.usable()) {
      cast_in_aten(tensors[i], scales[static_cast<int64_t>(i)], to, to_transposed);
      continue;
    }
    work.add(tensors[i], static_cast<int32>(i), plain ? to.data_ptr() : nullptr,
             transposed ? to_transposed.data_ptr() : nullptr);
  }
  if (work.plan.tensors() > 0) {
    kernels.run(cpu::float8_cast, cuda::float8_cast, work.plan, work.matrices,
                scales.const_data_ptr<float>(), format_of(dtype));
  }
  return casts;
}

Casts cast_on_meta(TensorList tensors, const Tensor& scales, ScalarType dtype, bool plain,
                   bool transposed) {
  check_matrices(tensors, scales);
  return outputs_for(tensors, dtype, plain, transposed);
}

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  define(m, kScalesSchema, float8_scales, scales_on_meta);
  define(m, kCastSchema, float8_cast, cast_on_meta);
}

}  // namespace

Tensor float8_scales(TensorList tensors, ScalarType dtype) {
  check_dtype("float8_scales", dtype);
  const Tensor& first = dispatched_by("float8_scales", "tensors", tensors);
  check_dtypes("float8_scales", tensors);
  return dispatch<run_scales>(kScalesSchema, first, tensors, dtype);
}

Casts float8_cast(TensorList tensors, const Tensor& scales, ScalarType dtype, bool plain,
                  bool transposed) {
  check_dtype("float8_cast", dtype);
  check_matrices(tensors, scales);
  return dispatch<run_cast>(kCastSchema, scales, tensors, scales, dtype, plain, transposed);
}

}  // namespace torchamp::ops
