// The mapping of a unit's number to its elements, on the host.
#include <gtest/gtest.h>

#include <memory>

// CUDA's words in the headers below.
#define __device__
#define __forceinline__ inline
static const struct { unsigned x; } threadIdx{0}, blockIdx{0}, blockDim{32};
static bool __any_sync(unsigned, bool found) {
  return found;
}

#include "cuda/arguments.h"
#include "cuda/tables.h"
#include "cuda/unit.h"
#include "cuda/walk.h"

namespace torchamp::cuda {
namespace {

using Table = Launch<CopyCastArguments>;

/// A float16 and a float32 list with tensors of these sizes, at addresses that are never read.
std::unique_ptr<Table> table_of(const std::vector<int64>& sizes, bool lacks_second = false) {
  Plan plan;
  plan.lists = 2;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    void* const address = reinterpret_cast<void*>(64 * (t + 1));
    plan.data.insert(plan.data.end(), {address, lacks_second ? nullptr : address});
    plan.dtypes.insert(plan.dtypes.end(), {DType::kFloat16, DType::kFloat32});
    plan.offsets.push_back(plan.offsets.back() + sizes[t]);
    plan.positions.push_back(static_cast<int32>(t));
  }
  auto table = std::make_unique<Table>();
  begin(*table, CopyCastArguments{}, kWarpUnit);
  fill(*table, plan, 0);
  return table;
}

long long place(const void* address) {
  return reinterpret_cast<long long>(address);
}

TEST(EntryOf, FindsEveryUnitsTensor) {
  const auto table = table_of({1, 5000, 2048, 2049, 3, 3, 3, 100000});
  int expected = 0;
  for (uint32 unit = 0; unit < table->units; ++unit) {
    if (unit == end_unit(*table, expected)) ++expected;
    EXPECT_EQ(entry_of(*table, unit), expected) << "unit " << unit;
  }
  EXPECT_EQ(expected, 7);
}

TEST(SliceOf, IsFullButForTheLastOfATensor) {
  const auto table = table_of({7, 2 * kWarpUnit + 5});
  EXPECT_EQ(slice_of(*table, 0).count, 7);
  EXPECT_EQ(slice_of(*table, 1).count, kWarpUnit);
  EXPECT_EQ(slice_of(*table, 2).count, kWarpUnit);
  EXPECT_EQ(slice_of(*table, 3).count, 5);
  EXPECT_EQ(slice_of(*table, 3).position, 1);
}

TEST(SliceOf, CountsBytesByTheListsDtype) {
  const auto table = table_of({7, 2 * kWarpUnit + 5});
  const auto slice = slice_of(*table, 3);
  EXPECT_EQ(place(slice.address[0]), 128 + 2 * kWarpUnit * 2);
  EXPECT_EQ(place(slice.address[1]), 128 + 2 * kWarpUnit * 4);
}

TEST(SliceOf, IsNullWhereAListLacksTheTensor) {
  const auto table = table_of({2 * kWarpUnit}, /*lacks_second=*/true);
  EXPECT_EQ(place(slice_of(*table, 1).address[0]), 64 + kWarpUnit * 2);
  EXPECT_EQ(slice_of(*table, 1).address[1], nullptr);
}

TEST(SliceOf, ReachesElementsThat32BitsDoNotCount) {
  const int64 many = int64{1} << 33;
  const auto table = table_of({many + 8});
  const auto slice = slice_of(*table, table->units - 1);
  EXPECT_EQ(place(slice.address[0]), 64 + many * 2);
  EXPECT_EQ(place(slice.address[1]), 64 + many * 4);
  EXPECT_EQ(slice.count, 8);
}

TEST(EntryOf, NeedsNoSearchWhereEveryTensorIsAUnit) {
  const auto table = table_of({1, 2, kWarpUnit, 3});
  for (uint32 unit = 0; unit < table->units; ++unit) {
    EXPECT_EQ(entry_of(*table, unit), static_cast<int>(unit));
  }
}

/// 100 elements of a 16-bit and a float32 list, at these byte offsets from a multiple of 16.
Slice<2> slice_at(int first_bytes, int second_bytes) {
  Slice<2> slice{};
  slice.address[0] = reinterpret_cast<char*>(1024 + first_bytes);
  slice.address[1] = reinterpret_cast<char*>(4096 + second_bytes);
  slice.dtype[0] = DType::kFloat16;
  slice.dtype[1] = DType::kFloat32;
  slice.count = 100;
  return slice;
}

TEST(AlignedVectors, BeginWhereAllListsAreAligned) {
  const auto vectors = aligned_vectors<8>(slice_at(6, 12));
  EXPECT_EQ(vectors.begin, 5);
  EXPECT_EQ(vectors.count, 11);
  EXPECT_FALSE(vectors.mixed);
}

TEST(AlignedVectors, LeaveOutTheFirstList) {
  for (const DType dtype : {DType::kFloat16, DType::kFloat32}) {
    auto slice = slice_at(dtype == DType::kFloat16 ? 2 : 0, dtype == DType::kFloat16 ? 0 : 4);
    slice.dtype[0] = dtype;
    slice.dtype[1] = DType::kFloat16;
    const auto vectors = aligned_vectors<8>(slice);
    EXPECT_EQ(vectors.begin, dtype == DType::kFloat16 ? 0 : 6);
    EXPECT_TRUE(vectors.mixed);
    EXPECT_GT(vectors.count, 10);
  }
}

TEST(AlignedVectors, AreNoneWhereTheRestIsMisaligned) {
  EXPECT_EQ(aligned_vectors<8>(slice_at(2, 2)).count, 0);
}

}  // namespace
}  // namespace torchamp::cuda
