// float8_scales and float8_cast, from plan to kernel.
#include "cases.h"
#include "checks.h"
#include "driver.h"
#include "queues.h"

namespace kernel_tests {
namespace {

namespace cuda = torchamp::cuda;
using torchamp::Float8;
using torchamp::Matrix;
using torchamp::uint32;

using Bytes = std::vector<uint8>;

constexpr uint8 kUnwritten = 0xab;

float expected_scale(const Tensor& tensor, Float8 format) {
  uint32 largest = 0;
  for (int64 i = 0; i < tensor.count(); ++i) {
    largest = std::max(largest, torchamp::magnitude_of(tensor[i]));
  }
  return torchamp::float8_scale(largest, format);
}

void expect_scales(const TensorList& list, Float8 format, const cuda::Queue& queue = kQueue) {
  const auto count = static_cast<int32>(2 * list.size());
  std::vector<float> scales(count);
  std::vector<uint32> workspace(count + 1);
  cuda::float8_scales(queue, plan_of({&list}), format, count, scales.data(), workspace.data());
  EXPECT_EQ(workspace.back(), 0u);
  for (std::size_t t = 0; t < list.size(); ++t) {
    EXPECT_EQ(torchamp::float_to_bits(scales[2 * t]),
              torchamp::float_to_bits(expected_scale(list[t], format)))
        << "tensor " << t;
    EXPECT_EQ(scales[2 * t + 1], 1.0f) << "of a position that the plan leaves out";
  }
}

class Float8Test : public testing::TestWithParam<Float8> {
 protected:
  void SetUp() override { cuda::use_driver(driver()); }
};

TEST_P(Float8Test, ScalesAreThoseOfTheLargestMagnitudes) {
  auto lists = all_cases(1);
  spoil(lists[0]);
  lists[0].emplace_back(DType::kFloat16, 70001, 1);
  lists[0].back().set(70000, -3.0f);
  expect_scales(lists[0], GetParam());
  EXPECT_EQ(last_launched(), "torchamp_float8_scales_small");
  append(lists, tiny_cases(1));
  Tables tables;
  const int before = launches();
  expect_scales(lists[0], GetParam(), {0, nullptr, &tables});
  EXPECT_EQ(launches(), before + 1);
  EXPECT_EQ(last_launched(), "torchamp_float8_scales_resident");
  expect_scales(lists[0], GetParam());
  EXPECT_EQ(launches(), before + 3) << "the last of two launches writes the scales";
  EXPECT_EQ(last_launched(), "torchamp_float8_scales");
}

/// A matrix whose first row begins `misalignment` elements past 16 bytes, and its outputs.
struct Cast {
  Cast(DType dtype, const Matrix& sizes, int64 misalignment = 0)
      : sizes(sizes),
        matrix(dtype, sizes.rows * sizes.stride, misalignment),
        plain(sizes.rows * sizes.columns + 16, kUnwritten),
        transposed(torchamp::padded(sizes.rows) * sizes.columns + 16, kUnwritten) {}

  Matrix sizes;
  Tensor matrix;
  Bytes plain;
  Bytes transposed;
  float scale = 0.25f;
};

struct Wanted {
  bool plain = true;
  bool transposed = true;
};

void expect_cast(const Cast& cast, Float8 format, Wanted wanted) {
  const auto [rows, columns, stride] = cast.sizes;
  const int64 length = torchamp::padded(rows);
  Bytes plain(cast.plain.size(), kUnwritten), transposed(cast.transposed.size(), kUnwritten);
  if (wanted.transposed) std::fill_n(transposed.begin(), length * columns, uint8{0});
  for (int64 r = 0; r < rows; ++r) {
    for (int64 c = 0; c < columns; ++c) {
      const float divided = cast.matrix[r * stride + c] / cast.scale;
      const uint8 rounded = torchamp::to_float8(divided, format);
      if (wanted.plain) plain[r * columns + c] = rounded;
      if (wanted.transposed) transposed[c * length + r] = rounded;
    }
  }
  EXPECT_EQ(cast.plain, plain) << rows << " x " << columns;
  EXPECT_EQ(cast.transposed, transposed) << rows << " x " << columns;
}

void run_and_expect(std::vector<Cast>& casts, Float8 format, const cuda::Queue& queue = kQueue,
                    Wanted wanted = {}) {
  Plan plan;
  plan.lists = 3;
  std::vector<Matrix> matrices;
  std::vector<float> scales;
  for (Cast& cast : casts) {
    plan.data.insert(plan.data.end(),
                     {cast.matrix.data(), wanted.plain ? cast.plain.data() : nullptr,
                      wanted.transposed ? cast.transposed.data() : nullptr});
    plan.dtypes.insert(plan.dtypes.end(), {cast.matrix.dtype(), {}, {}});
    plan.offsets.push_back(plan.elements() +
                           torchamp::tiles(cast.sizes.rows) * torchamp::tiles(cast.sizes.columns));
    plan.positions.push_back(static_cast<int32>(scales.size()));
    plan.rows.push_back(static_cast<int32>(matrices.size()));
    matrices.push_back(cast.sizes);
    scales.push_back(cast.scale);
  }
  cuda::float8_cast(queue, plan, matrices, scales.data(), format);
  for (const Cast& cast : casts) expect_cast(cast, format, wanted);
}

TEST_P(Float8Test, CastsEveryBFloat16) {
  std::vector<Cast> casts;
  for (const float scale : {1.0f, 0x1p-126f, 0x1p-20f, 0x1p120f, NAN}) {
    casts.emplace_back(DType::kBFloat16, Matrix{256, 256, 256});
    casts.back().scale = scale;
    for (int i = 0; i < 65536; ++i) {
      static_cast<torchamp::uint16*>(casts.back().matrix.data())[i] =
          static_cast<torchamp::uint16>(i);
    }
  }
  run_and_expect(casts, GetParam());
}

/// Sizes from 1 to 130, and those around tiles, padding and vectors; any dtypes, alignments and
/// gaps between rows.
std::vector<Cast> casts_of_all_kinds() {
  std::vector<Cast> casts;
  std::mt19937 random(5);
  const int64 edges[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 128, 129, 130};
  for (int i = 0; i < 90; ++i) {
    const int64 rows = i % 3 == 0 ? edges[random() % 12] : 1 + random() % 130;
    const int64 columns = i % 2 == 0 ? edges[random() % 12] : 1 + random() % 130;
    const int64 gap = i % 5 == 0 ? random() % 10 : 0, misaligned = i % 7 == 0 ? random() % 8 : 0;
    casts.emplace_back(kDTypes[i % 3], Matrix{rows, columns, columns + gap}, misaligned);
    casts.back().scale = std::ldexp(1.0f, static_cast<int>(random() % 20) - 18);
    TensorList list;
    list.push_back(std::move(casts.back().matrix));
    randomise(list, static_cast<unsigned>(i));
    casts.back().matrix = std::move(list[0]);
  }
  return casts;
}

TEST_P(Float8Test, CastsMatricesOfAllKinds) {
  const int before = launches();
  for (const Wanted wanted : {Wanted{true, true}, Wanted{true, false}, Wanted{false, true}}) {
    auto casts = casts_of_all_kinds();
    run_and_expect(casts, GetParam(), kQueue, wanted);
    EXPECT_EQ(last_launched(), "torchamp_float8_cast");
  }
  EXPECT_EQ(launches(), before + 3);
}

/// Each kind of table has kernels of its own.
TEST_P(Float8Test, CastsFromEveryTable) {
  auto casts = casts_of_all_kinds();
  for (int i = 0; i < 600; ++i) casts.emplace_back(DType::kFloat32, Matrix{1, 1, 1});
  Tables tables;
  run_and_expect(casts, GetParam(), {0, nullptr, &tables});
  EXPECT_EQ(last_launched(), "torchamp_float8_cast_resident");
  const int before = launches();
  run_and_expect(casts, GetParam());
  EXPECT_EQ(launches(), before + 2);
  casts.erase(casts.begin() + 40, casts.end());
  run_and_expect(casts, GetParam());
  EXPECT_EQ(last_launched(), "torchamp_float8_cast_small");
}

INSTANTIATE_TEST_SUITE_P(Of, Float8Test, testing::Values(Float8::kE4m3, Float8::kE5m2),
                         [](const auto& info) {
                           return std::string(info.param == Float8::kE4m3 ? "E4m3" : "E5m2");
                         });

}  // namespace
}  // namespace kernel_tests
