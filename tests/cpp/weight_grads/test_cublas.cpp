#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "math/float16.h"
#include "weight_grads/cublas.h"

namespace torchamp::cuda {
namespace {

int handles = 0;
int torchs_handle = 0;
int torch_fails_with = 0;
const void* last_handle = nullptr;
void* last_stream = nullptr;
int failing_with = 0;

float element(const void* matrix, int type, int64 i) {
  return type == 2 ? to_float(static_cast<const float16*>(matrix)[i])
                   : to_float(static_cast<const bfloat16*>(matrix)[i]);
}

/// cublasGemmEx as its manual defines it, column by column, for op_a = N and op_b = T.
int multiply(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
             const void* a, int type_a, int lda, const void* b, int type_b, int ldb,
             const void* beta, void* c, int type_c, int ldc, int compute_type, int algorithm) {
  last_handle = handle;
  EXPECT_EQ(op_a, 0);
  EXPECT_EQ(op_b, 1);
  EXPECT_EQ(type_c, 0);
  EXPECT_EQ(compute_type, 68);
  EXPECT_EQ(algorithm, -1);
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      float sum = 0;
      for (int i = 0; i < k; ++i) {
        sum +=
            element(a, type_a, row + int64{i} * lda) * element(b, type_b, column + int64{i} * ldb);
      }
      float& out = static_cast<float*>(c)[row + int64{column} * ldc];
      out = scale * sum + (keep == 0.0f ? 0.0f : keep * out);
    }
  }
  return failing_with;
}

class CublasTest : public ::testing::Test {
 protected:
  void SetUp() override {
    last_handle = last_stream = nullptr;
    fake_.create = [](void** handle) { return *handle = &handles, ++handles, 0; };
    fake_.set_stream = [](void*, void* stream) { return last_stream = stream, 0; };
    fake_.gemm = multiply;
    fake_.torchs_handle = nullptr;
    use_cublas(fake_);
  }

  static void lend_torchs_handle() {
    fake_.torchs_handle = [](void** handle) { return *handle = &torchs_handle, torch_fails_with; };
  }

  static Cublas fake_;
};

Cublas CublasTest::fake_{};

template <class T>
std::vector<T> counted(int64 count) {
  std::vector<T> values;
  for (int64 i = 0; i < count; ++i) values.push_back(from_float<T>(static_cast<float>(i % 7) - 2));
  return values;
}

/// rows [3], outputs [4], columns [5].
template <class T>
void expect_sums(bool onto) {
  const auto grads = counted<T>(3 * 4), inputs = counted<T>(3 * 5);
  std::vector<float> sum(4 * 5, 1000.0f);
  const DType dtype = std::is_same_v<T, float16> ? DType::kFloat16 : DType::kBFloat16;
  add_product({0, &handles}, {grads.data(), inputs.data(), sum.data(), dtype, 3, 4, 5, onto});
  for (int output = 0; output < 4; ++output) {
    for (int column = 0; column < 5; ++column) {
      float expected = onto ? 1000.0f : 0.0f;
      for (int row = 0; row < 3; ++row) {
        expected += to_float(grads[row * 4 + output]) * to_float(inputs[row * 5 + column]);
      }
      EXPECT_EQ(sum[output * 5 + column], expected) << output << ' ' << column << ' ' << onto;
    }
  }
}

TEST_F(CublasTest, AddsTheProductOfRowsUp) {
  for (const bool onto : {false, true}) {
    expect_sums<float16>(onto);
    expect_sums<bfloat16>(onto);
  }
  EXPECT_EQ(last_stream, &handles);
}

TEST_F(CublasTest, EachThreadHasOneHandleADevice) {
  expect_sums<float16>(false);
  const int before = handles;
  expect_sums<float16>(false);
  EXPECT_EQ(handles, before);
}

TEST_F(CublasTest, TorchsHandleIsTakenAsItIsWhereThereIsOne) {
  lend_torchs_handle();
  const int before = handles;
  expect_sums<float16>(false);
  EXPECT_EQ(last_handle, &torchs_handle);
  EXPECT_EQ(last_stream, nullptr) << "setting the stream takes torch's workspace from its handle";
  EXPECT_EQ(handles, before);
}

TEST_F(CublasTest, EmptySizesAreLeftToOthers) {
  EXPECT_FALSE(cublas_takes(0, 2, 3));
  EXPECT_FALSE(cublas_takes(1, 0, 3));
  EXPECT_FALSE(cublas_takes(1, 2, 0));
}

TEST_F(CublasTest, SizesBeyondIntsAreLeftToOthers) {
  EXPECT_TRUE(cublas_takes(1, 2, 3));
  EXPECT_FALSE(cublas_takes(int64{1} << 31, 2, 3));
}

std::string message_of_a_product() {
  const std::vector<float16> one = counted<float16>(1);
  float sum = 0;
  try {
    add_product({0, nullptr}, {one.data(), one.data(), &sum, DType::kFloat16, 1, 1, 1, false});
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// cuBLAS is looked for once per process.
[[noreturn]] void exit_by_whether_cublas_is_found() {
  dlopen(TORCHAMP_TEST_CUBLAS, RTLD_NOW | RTLD_LOCAL);
  std::exit(cublas_takes(1, 1, 1) ? 10 : 11);
}

TEST(CublasDeathTest, IsFoundByTheNameThatItHasInArchivesOfLibTorch) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_by_whether_cublas_is_found(), testing::ExitedWithCode(10), "");
}

TEST_F(CublasTest, FailuresAreNamed) {
  failing_with = 13;
  EXPECT_EQ(message_of_a_product(), "multiplying failed: cuBLAS status 13");
  failing_with = 0;
  lend_torchs_handle();
  torch_fails_with = 1;
  EXPECT_EQ(message_of_a_product(), "torch has no cuBLAS handle for CUDA device 0");
  torch_fails_with = 0;
}

}  // namespace
}  // namespace torchamp::cuda
