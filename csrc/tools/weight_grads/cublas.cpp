#include "weight_grads/cublas.h"

#include <limits>
#include <optional>
#include <unordered_map>

#include "cuda/library.h"

namespace torchamp::cuda {
namespace {

// Constants of cublas_api.h and library_types.h.
constexpr int kNoTranspose = 0, kTranspose = 1;
constexpr int kReal32F = 0, kReal16F = 2, kReal16BF = 14;
constexpr int kCompute32F = 68;
constexpr int kDefaultAlgorithm = -1;

const Cublas* fake_cublas = nullptr;

/// LibTorch's archives have it as libcublas-<hash>.so.<version>.
std::string loaded_cublas() {
  const std::string path = loaded_library("libcublas.so");
  return path.empty() ? loaded_library("libcublas-") : path;
}

std::optional<Cublas> open_cublas() {
  const std::string path = loaded_cublas();
  if (path.empty()) return std::nullopt;
  const Library library(path);
  Cublas cublas{};
  library.find("cublasCreate_v2", cublas.create);
  library.find("cublasSetStream_v2", cublas.set_stream);
  library.find("cublasGemmEx", cublas.gemm);
  const std::string torch = loaded_library("libtorch_cuda.so");
  if (!torch.empty()) {
    Library(torch).find_optional("torch_get_current_cuda_blas_handle", cublas.torchs_handle);
  }
  return cublas;
}

const Cublas* cublas() {
  if (fake_cublas != nullptr) return fake_cublas;
  static const std::optional<Cublas> found = open_cublas();
  return found ? &*found : nullptr;
}

void require(int code, const char* action) {
  if (code == 0) return;
  throw std::runtime_error(std::string(action) + " failed: cuBLAS status " + std::to_string(code));
}

/// This thread's on the device: handles are not to be shared. They live as long as the process, as
/// torch's own do, because the driver may be gone before thread-local objects are.
void* own_handle(Queue queue) {
  thread_local std::unordered_map<int, void*> handles;
  void*& handle = handles[queue.device];
  if (handle == nullptr) require(cublas()->create(&handle), "creating a handle");
  require(cublas()->set_stream(handle, queue.stream), "setting the stream");
  return handle;
}

/// torch's handle has torch's workspace, which setting the stream again would reset.
void* handle_on(Queue queue) {
  if (cublas()->torchs_handle == nullptr) return own_handle(queue);
  void* handle = nullptr;
  if (cublas()->torchs_handle(&handle) == 0) return handle;
  throw std::runtime_error("torch has no cuBLAS handle for CUDA device " +
                           std::to_string(queue.device));
}

bool is_extent(int64 size) {
  return size > 0 && size <= std::numeric_limits<int>::max();
}

}  // namespace

bool cublas_takes(int64 rows, int64 outputs, int64 columns) {
  return is_extent(rows) && is_extent(outputs) && is_extent(columns) && cublas() != nullptr;
}

/// cuBLAS reads matrices column by column, that is, ours as their transposes: sumᵀ = inputsᵀ ·
/// (gradsᵀ)ᵀ.
void add_product(Queue queue, const Gemm& gemm) {
  const auto m = static_cast<int>(gemm.columns), n = static_cast<int>(gemm.outputs);
  const auto k = static_cast<int>(gemm.rows);
  const int type = gemm.dtype == DType::kFloat16 ? kReal16F : kReal16BF;
  const float one = 1.0f, beta = gemm.onto ? 1.0f : 0.0f;
  require(cublas()->gemm(handle_on(queue), kNoTranspose, kTranspose, m, n, k, &one, gemm.inputs,
                         type, m, gemm.grads, type, n, &beta, gemm.sum, kReal32F, m, kCompute32F,
                         kDefaultAlgorithm),
          "multiplying");
}

void use_cublas(const Cublas& fake) {
  fake_cublas = &fake;
}

}  // namespace torchamp::cuda
