// float8_scales: the largest magnitude of each tensor, from which the last block makes the scales.
// float8_cast: each block rounds a tile, writes it, and writes it transposed.
#pragma once

#include "cuda/arguments.h"
#include "cuda/block_sum.h"
#include "cuda/last_block.h"
#include "cuda/walk.h"

namespace torchamp::cuda {

struct MagnitudeElement {
  static constexpr int kReads = 1;
  static constexpr int kWrites = -1;
  static constexpr int kBatch = 4;
  uint32 largest = 0;
  bool found = false;

  TORCHAMP_DEVICE bool reads(int) const { return true; }

  TORCHAMP_DEVICE float operator()(float value) {
    largest = max(largest, magnitude_of(value));
    return value;
  }
};

template <class Launch>
TORCHAMP_DEVICE void float8_scales(const Launch& launch) {
  const Float8ScalesArguments& arguments = launch.arguments;
  const uint32 unit = warp_unit(launch);
  if (unit < launch.units) {
    const auto slice = slice_of(launch, unit);
    MagnitudeElement element;
    walk(slice, element, warp_team());
    const uint32 largest =
        combined_in_warp(element.largest, [](uint32 one, uint32 other) { return max(one, other); });
    if (threadIdx.x % kWarp == 0) atomicMax(arguments.magnitudes + slice.position, largest);
  }
  if (arguments.ticket == nullptr || !is_last_block</*sees_writes=*/true>(arguments.ticket)) return;
  for (int i = static_cast<int>(threadIdx.x); i < arguments.count; i += blockDim.x) {
    arguments.scales[i] = float8_scale(arguments.magnitudes[i], arguments.format);
  }
}

/// Neighbouring elements of a row that a thread rounds at once.
constexpr int kTileVector = 8;
/// How many times each thread does so.
constexpr int kTileTurns = kTile * kTile / kTileVector / kPassThreads;
/// Words of a row in shared memory, one of which keeps the rows from sharing banks.
constexpr int kTileWords = kTile / 4 + 1;

/// A tile, by its first element.
struct Tile {
  const char* elements;  ///< of the whole matrix, as its outputs
  uint8* plain;
  uint8* transposed;
  Matrix matrix;
  DType dtype;
  int64 row;
  int64 column;
  bool is_aligned;  ///< whether vectors are, in the matrix

  TORCHAMP_DEVICE const char* address(int64 r, int64 c) const {
    return elements + (r * matrix.stride + c) * size_of(dtype);
  }
};

template <class Launch>
TORCHAMP_DEVICE Tile tile_of(const Launch& launch, const Entry<3>& entry) {
  const Matrix& matrix = launch.row(entry.row);
  const DType dtype = entry.dtype(0);
  const uint32 number = blockIdx.x - entry.first_unit;
  const auto across = static_cast<uint32>(tiles(matrix.columns));
  const auto begin = reinterpret_cast<uint64>(entry.address[0]);
  return {static_cast<const char*>(entry.address[0]),
          static_cast<uint8*>(entry.address[1]),
          static_cast<uint8*>(entry.address[2]),
          matrix,
          dtype,
          int64{number / across} * kTile,
          int64{number % across} * kTile,
          (begin | static_cast<uint64>(matrix.stride * size_of(dtype))) % kVectorBytes == 0};
}

/// The matrix's elements from (row, column) on; zeros outside of it.
TORCHAMP_DEVICE void load_vector(const Tile& tile, int64 row, int64 column,
                                 Bits<kTileVector>& bits) {
  const int64 left = row < tile.matrix.rows ? tile.matrix.columns - column : 0;
  if (tile.is_aligned && left >= kTileVector) {
    load_bits(tile.dtype, tile.address(row, column), bits);
    return;
  }
  TORCHAMP_UNROLL
  for (int i = 0; i < kTileVector; ++i) {
    if (i >= left) continue;
    Bits<1> one;
    load_bits(tile.dtype, tile.address(row, column + i), one);
    if (tile.dtype == DType::kFloat32) {
      bits.words[i] = one.words[0];
    } else {
      bits.words[i / 2] |= one.words[0] << (i % 2 * 16);
    }
  }
}

TORCHAMP_DEVICE void store_plain(const Tile& tile, int64 row, int64 column, const uint32* words) {
  const int64 left = row < tile.matrix.rows ? tile.matrix.columns - column : 0;
  uint8* const to = tile.plain + row * tile.matrix.columns + column;
  if (tile.matrix.columns % kTileVector == 0 && left > 0) {
    store_bytes<kTileVector>(reinterpret_cast<char*>(to), words);
    return;
  }
  TORCHAMP_UNROLL
  for (int i = 0; i < kTileVector; ++i) {
    if (i < left) to[i] = static_cast<uint8>(words[i / 4] >> (i % 4 * 8));
  }
}

/// Each thread writes neighbouring elements of a row, which come from a column of the tile.
TORCHAMP_DEVICE void store_transposed(const Tile& tile, const uint32 (&shared)[kTile][kTileWords]) {
  static_assert(kTile * kTile == kRowMultiple * kPassThreads);
  constexpr int kParts = kTile / kRowMultiple;
  const int c = static_cast<int>(threadIdx.x) / kParts;
  const int r = static_cast<int>(threadIdx.x) % kParts * kRowMultiple;
  const int64 length = padded(tile.matrix.rows);
  if (tile.column + c >= tile.matrix.columns || tile.row + r >= length) return;
  uint32 words[kRowMultiple / 4] = {};
  TORCHAMP_UNROLL
  for (int i = 0; i < kRowMultiple; ++i) {
    const uint32 value = reinterpret_cast<const uint8*>(shared[r + i])[c];
    words[i / 4] |= value << (i % 4 * 8);
  }
  uint8* const to = tile.transposed + (tile.column + c) * length + tile.row + r;
  store_bytes<kRowMultiple>(reinterpret_cast<char*>(to), words);
}

template <class Launch>
TORCHAMP_DEVICE void float8_cast(const Launch& launch) {
  __shared__ uint32 shared[kTile][kTileWords];
  const Float8CastArguments& arguments = launch.arguments;
  const auto& entry = launch.entry(entry_of(launch, blockIdx.x));
  const Tile tile = tile_of(launch, entry);
  const float reciprocal = 1.0f / arguments.scales[entry.position];
  const int row = static_cast<int>(threadIdx.x) * kTileVector / kTile;
  const int column = static_cast<int>(threadIdx.x) * kTileVector % kTile;
  constexpr int kRowsOfTurn = kTile / kTileTurns;
  Bits<kTileVector> bits[kTileTurns] = {};
  TORCHAMP_UNROLL
  for (int turn = 0; turn < kTileTurns; ++turn) {
    load_vector(tile, tile.row + row + turn * kRowsOfTurn, tile.column + column, bits[turn]);
  }
  TORCHAMP_UNROLL
  for (int turn = 0; turn < kTileTurns; ++turn) {
    const int r = row + turn * kRowsOfTurn;
    float values[kTileVector];
    widen<kTileVector>(tile.dtype, bits[turn], values);
    uint32 words[kTileVector / 4] = {};
    TORCHAMP_UNROLL
    for (int i = 0; i < kTileVector; ++i) {
      words[i / 4] |= uint32{to_float8(values[i] * reciprocal, arguments.format)} << (i % 4 * 8);
    }
    TORCHAMP_UNROLL
    for (int w = 0; w < kTileVector / 4; ++w) shared[r][column / 4 + w] = words[w];
    if (tile.plain != nullptr) store_plain(tile, tile.row + r, tile.column + column, words);
  }
  if (tile.transposed == nullptr) return;
  __syncthreads();
  store_transposed(tile, shared);
}

}  // namespace torchamp::cuda
