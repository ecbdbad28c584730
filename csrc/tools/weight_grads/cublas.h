// The copy of cuBLAS that torch has loaded, for the one product that ATen does not offer in every
// version: 16-bit factors, a float32 sum.
#pragma once

#include "backends/kernels.h"

namespace torchamp::cuda {

/// cuBLAS's functions under shortened names, with its handle as void*. Each returns 0 or an error
/// code.
struct Cublas {
  /// torch's own handle for the current device, on its current stream. Not in every torch; else
  /// null.
  int (*torchs_handle)(void** handle);
  int (*create)(void** handle);
  int (*set_stream)(void* handle, void* stream);
  int (*gemm)(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
              const void* a, int type_a, int lda, const void* b, int type_b, int ldb,
              const void* beta, void* c, int type_c, int ldc, int compute_type, int algorithm);
};

/// sum (+)= gradsᵀ · inputs, all of it row by row: grads [rows, outputs] and inputs [rows, inputs]
/// of `dtype`, which has 16 bits, sum [outputs, inputs] in float32.
struct Gemm {
  const void* grads;
  const void* inputs;
  float* sum;
  DType dtype;
  int64 rows;
  int64 outputs;
  int64 columns;
  bool onto;  ///< whether sum is added to, or only written
};

/// Whether torch has loaded cuBLAS, and supports the sizes: none is 0.
bool cublas_takes(int64 rows, int64 outputs, int64 columns);

/// Throws std::runtime_error if cuBLAS fails. The queue's device must be the current one, and
/// its stream torch's current one.
void add_product(Queue queue, const Gemm& gemm);

/// Replaces cuBLAS by `fake`, which must outlive its use. For tests.
void use_cublas(const Cublas& fake);

}  // namespace torchamp::cuda
