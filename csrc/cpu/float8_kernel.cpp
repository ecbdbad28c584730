#include <algorithm>

#include "backends/kernels.h"
#include "cpu/isa.h"
#include "cpu/prefetch.h"
#include "cpu/walk.h"

namespace torchamp::cpu {
namespace {

struct MagnitudeBlock {
  TORCHAMP_MATH static uint32 run(const float* values, const Span& span) {
    uint32 largest[kLanes] = {};
    const auto take = [&](int i, int lane) {
      const uint32 magnitude = magnitude_of(values[i]);
      largest[lane] = largest[lane] < magnitude ? magnitude : largest[lane];
    };
    for_each_element(span, take, values);
    return *std::max_element(largest, largest + kLanes);
  }
};

uint32 largest_magnitude(const Plan& plan, const Piece& piece) {
  uint32 largest = 0;
  float taken[kBlock];
  for_each_block(piece, 0, [&](const Span& span) {
    largest = std::max(largest, run_block<MagnitudeBlock>(load(plan, span, 0, taken), span));
  });
  return largest;
}

struct Float8Block {
  TORCHAMP_MATH static void run(const float* values, int count, float reciprocal, Float8 format,
                                uint8* rounded) {
    TORCHAMP_INDEPENDENT
    for (int i = 0; i < count; ++i) rounded[i] = to_float8(values[i] * reciprocal, format);
  }
};

/// A matrix's part of at most kTile rows and columns.
class Tile {
 public:
  Tile(const Plan& plan, const Matrix& matrix, int64 tensor, int64 number)
      : plan_(plan),
        matrix_(matrix),
        tensor_(tensor),
        row_(number / tiles(matrix.columns) * kTile),
        column_(number % tiles(matrix.columns) * kTile),
        rows_(static_cast<int>(std::min<int64>(kTile, matrix.rows - row_))),
        columns_(static_cast<int>(std::min<int64>(kTile, matrix.columns - column_))) {}

  void cast(float reciprocal, Float8 format) {
    for (int r = 0; r < rows_; ++r) {
      float taken[kBlock];
      const Span span{tensor_, (row_ + r) * matrix_.stride + column_, columns_};
      prefetch_next(span);
      run_block<Float8Block>(load(plan_, span, 0, taken), columns_, reciprocal, format,
                             rounded_[r]);
    }
  }

  void store_plain() const {
    auto* const to = static_cast<uint8*>(plan_.address(tensor_, 1));
    if (to == nullptr) return;
    for (int r = 0; r < rows_; ++r) {
      std::copy_n(rounded_[r], columns_, to + (row_ + r) * matrix_.columns + column_);
    }
  }

  void store_transposed() const {
    auto* const to = static_cast<uint8*>(plan_.address(tensor_, 2));
    if (to == nullptr) return;
    const int64 length = padded(matrix_.rows);
    const int count = static_cast<int>(std::min<int64>(kTile, length - row_));
    for (int c = 0; c < columns_; ++c) {
      uint8* const row = to + (column_ + c) * length + row_;
      for (int r = 0; r < count; ++r) row[r] = rounded_[r][c];
    }
  }

 private:
  /// The row of the tile to the right: the processor does not foresee it.
  void prefetch_next(const Span& span) const {
    const int bytes = kTile * size_of(plan_.dtype(tensor_, 0));
    const char* const next = address_of(plan_, span, 0) + bytes;
    for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch(next + byte);
  }

  const Plan& plan_;
  const Matrix& matrix_;
  int64 tensor_;
  int64 row_;
  int64 column_;
  int rows_;
  int columns_;
  uint8 rounded_[kTile][kTile] = {};  ///< zeros below the matrix
};

}  // namespace

/// A maximum is the same in any order; slots are numbered as those of l2norm.
void float8_scales(const Plan& plan, Float8 format, int32 count, float* scales) {
  std::vector<uint32> slots(units_of(plan) + plan.tensors(), 0);
  for_each_piece_in_parallel(plan, [&](const Piece& piece) {
    slots[piece.unit + piece.tensor] = largest_magnitude(plan, piece);
  });
  std::fill_n(scales, count, 1.0f);
  for (int64 t = 0; t < plan.tensors(); ++t) {
    const auto first = slots.begin() + plan.offsets[t] / kUnit + t;
    const auto last = slots.begin() + (plan.offsets[t + 1] - 1) / kUnit + t;
    scales[plan.positions[t]] = float8_scale(*std::max_element(first, last + 1), format);
  }
}

void float8_cast(const Plan& plan, const std::vector<Matrix>& matrices, const float* scales,
                 Float8 format) {
  parallel_for(plan.elements(), [&](int64 first, int64 last) {
    for (int64 number = first; number < last; ++number) {
      const int64 tensor = tensor_at(plan, number);
      Tile tile(plan, matrices[plan.row(tensor)], tensor, number - plan.offsets[tensor]);
      tile.cast(1.0f / scales[plan.positions[tensor]], format);
      tile.store_plain();
      tile.store_transposed();
    }
  });
}

}  // namespace torchamp::cpu
