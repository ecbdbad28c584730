#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "cpu/walk.h"

namespace torchamp::cpu {
namespace {

/// A plan of one list whose memory is never touched. Tensor t starts at `address` + 4096 · t.
Plan plan_of(const std::vector<int64>& sizes, uintptr_t address = 4096,
             DType dtype = DType::kFloat32) {
  Plan plan;
  plan.lists = 1;
  for (const int64 size : sizes) {
    plan.data.push_back(reinterpret_cast<void*>(address + 4096 * plan.positions.size()));
    plan.dtypes.push_back(dtype);
    plan.offsets.push_back(plan.offsets.back() + size);
    plan.positions.push_back(static_cast<int32>(plan.positions.size()));
  }
  return plan;
}

std::vector<Piece> pieces_of(const Plan& plan, int64 first, int64 last) {
  std::vector<Piece> pieces;
  for_each_piece(plan, first, last, [&](const Piece& piece) { pieces.push_back(piece); });
  return pieces;
}

std::vector<Piece> pieces_of(const Plan& plan) {
  return pieces_of(plan, 0, units_of(plan));
}

/// Pieces cover every element of every tensor once, in order, each within one unit and one tensor.
void expect_covered(const Plan& plan, const std::vector<Piece>& pieces) {
  int64 flat = 0;
  for (const Piece& piece : pieces) {
    ASSERT_EQ(plan.offsets[piece.tensor] + piece.begin, flat);
    ASSERT_LT(piece.begin, piece.end);
    ASSERT_LE(plan.offsets[piece.tensor] + piece.end, plan.offsets[piece.tensor + 1]);
    ASSERT_EQ(flat / kUnit, piece.unit);
    flat += piece.end - piece.begin;
    ASSERT_EQ((flat - 1) / kUnit, piece.unit);
  }
  ASSERT_EQ(flat, plan.elements());
}

const std::vector<std::vector<int64>> kShapes = {
    {1},
    {kUnit},
    {kUnit - 1, 1, 1},
    {kUnit + 1},
    {1, kUnit, 1},
    {3 * kUnit, 2 * kUnit},
    {5, 7, 100000, 1, 1, 1, 65536, 31},
    std::vector<int64>(10000, 64),
    std::vector<int64>(70000, 1),
    {(int64{1} << 33) + 5, 3, (int64{1} << 31) - 1},
};

TEST(Walk, PiecesCoverEveryElementOnce) {
  for (const auto& sizes : kShapes) {
    const Plan plan = plan_of(sizes);
    expect_covered(plan, pieces_of(plan));
  }
}

TEST(Walk, AnySharingOutOfUnitsGivesTheSamePieces) {
  const Plan plan = plan_of({5, 7, 100000, 1, 1, 65536, 31, 40000});
  for (int64 share = 1; share <= units_of(plan); ++share) {
    std::vector<Piece> pieces;
    for (int64 first = 0; first < units_of(plan); first += share) {
      const auto part = pieces_of(plan, first, std::min(first + share, units_of(plan)));
      pieces.insert(pieces.end(), part.begin(), part.end());
    }
    expect_covered(plan, pieces);
  }
}

TEST(Walk, OfAnEmptyPlanVisitsNothing) {
  EXPECT_TRUE(pieces_of(plan_of({})).empty());
}

TEST(Walk, UnitPlusTensorNumbersThePieces) {
  for (const auto& sizes : kShapes) {
    const Plan plan = plan_of(sizes);
    int64 last = -1;
    for (const Piece& piece : pieces_of(plan)) {
      ASSERT_GT(piece.unit + piece.tensor, last);
      last = piece.unit + piece.tensor;
    }
    ASSERT_LT(last, units_of(plan) + plan.tensors());
  }
}

TEST(Walk, ParallelWalkVisitsTheSamePieces) {
  const Plan plan = plan_of({5, 700000, 100000, 1, 1, 65536, 31, 40000});
  std::mutex mutex;
  std::set<std::pair<int64, int64>> seen;
  for_each_piece_in_parallel(plan, [&](const Piece& piece) {
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_TRUE(seen.emplace(piece.tensor, piece.begin).second);
  });
  EXPECT_EQ(seen.size(), pieces_of(plan).size());
}

/// Blocks cover the piece; after the first, each starts at a multiple of 32 bytes if any can.
void expect_blocks(const Plan& plan, const Piece& piece, bool can_align) {
  int64 next = piece.begin;
  for_each_block(piece, misaligned_head(plan, piece, 0), [&](const Span& span) {
    ASSERT_EQ(span.tensor, piece.tensor);
    ASSERT_EQ(span.begin, next);
    ASSERT_GT(span.count, 0);
    ASSERT_LE(span.count, kBlock);
    ASSERT_TRUE(span.begin == piece.begin || is_aligned(plan, span, 0) == can_align);
    next += span.count;
  });
  ASSERT_EQ(next, piece.end);
}

TEST(Walk, BlocksStartAlignedAfterTheHead) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (uintptr_t offset = 0; offset < 64; offset += size_of(dtype)) {
      for (const int64 count : {1, 2, 15, 16, 17, 255, 256, 257, 1000}) {
        const Plan plan = plan_of({count + 9}, 4096 + offset, dtype);
        expect_blocks(plan, {0, 0, 0, count}, true);
        expect_blocks(plan, {0, 0, 9, count + 9}, true);
      }
    }
  }
}

TEST(Walk, BlocksOfMemoryAtAnOddAddressStillCoverIt) {
  expect_blocks(plan_of({1000}, 4096 + 2, DType::kFloat32), {0, 0, 0, 1000}, false);
}

TEST(Walk, OnlyLargeOutputsOfOtherMemoryAreStreamed) {
  Plan plan = plan_of({1, kStreamedBytes / 4 - 1});
  plan.lists = 2;
  plan.data = {plan.data[0], plan.data[0], plan.data[1], static_cast<char*>(plan.data[1]) + 64};
  plan.dtypes.assign(4, DType::kFloat32);
  EXPECT_FALSE(streams(plan, 1)) << "the first output is its input";
  plan.data[1] = static_cast<char*>(plan.data[0]) + 64;
  EXPECT_EQ(streams(plan, 1), can_stream());
  plan.dtypes[3] = DType::kFloat16;
  EXPECT_FALSE(streams(plan, 1)) << "half as many bytes";
}

TEST(Walk, RaisedFlagsNameTheCallersPosition) {
  Plan plan = plan_of({4, 4});
  plan.positions = {2, 5};
  float found_inf = 0;
  uint8 per_tensor[6] = {};
  raise_flags(plan, 1, {&found_inf, per_tensor});
  EXPECT_EQ(found_inf, 1.0f);
  EXPECT_EQ(per_tensor[5], 1);
  EXPECT_EQ(per_tensor[2], 0);
  raise_flags(plan, 0, {});
}

}  // namespace
}  // namespace torchamp::cpu
