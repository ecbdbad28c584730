// How an op visits the elements of a plan: units of 32,768 flat elements are shared out among the
// threads in one parallel region, whatever the tensors' sizes; within a unit, pieces of single
// tensors; within a piece, blocks.
#pragma once

#include <algorithm>

#include "backends/parallel.h"
#include "cpu/block.h"
#include "cpu/isa.h"

namespace torchamp::cpu {

constexpr int64 kUnit = 32768;

/// Outputs larger than this do not fit in a typical last-level cache with their inputs.
constexpr int64 kStreamedBytes = int64{16} << 20;

inline int64 units_of(const Plan& plan) {
  return (plan.elements() + kUnit - 1) / kUnit;
}

/// The tensor that holds flat element `element`.
inline int64 tensor_at(const Plan& plan, int64 element) {
  const auto after = std::upper_bound(plan.offsets.begin(), plan.offsets.end(), element);
  return after - plan.offsets.begin() - 1;
}

/// Elements [begin, end) of one tensor in one unit.
struct Piece {
  int64 unit;
  int64 tensor;
  int64 begin;
  int64 end;
};

inline Span whole(const Piece& piece) {
  return {piece.tensor, piece.begin, static_cast<int>(piece.end - piece.begin), 0};
}

/// Prefetches the beginnings of the next tensors, which the processor cannot predict.
inline void prefetch_ahead(const Plan& plan, int64 tensor) {
  constexpr int64 kAhead = 4;
  if (tensor + kAhead >= plan.tensors()) return;
  for (int list = 0; list < plan.lists; ++list) {
    const char* data = static_cast<const char*>(plan.address(tensor + kAhead, list));
    for (int64 byte = 0; byte < 64 * size_of(plan.dtype(tensor + kAhead, list)); byte += 64)
      __builtin_prefetch(data + byte);
  }
}

/// Calls visit(Piece) for each piece of the units [first, last), in flat order.
template <class Visit>
void for_each_piece(const Plan& plan, int64 first, int64 last, Visit visit) {
  int64 flat = first * kUnit;
  const int64 stop = std::min(last * kUnit, plan.elements());
  for (int64 tensor = tensor_at(plan, flat); flat < stop; ++tensor) {
    prefetch_ahead(plan, tensor);
    while (flat < std::min(plan.offsets[tensor + 1], stop)) {
      const int64 unit = flat / kUnit;
      const int64 end = std::min({plan.offsets[tensor + 1], (unit + 1) * kUnit, stop});
      visit(Piece{unit, tensor, flat - plan.offsets[tensor], end - plan.offsets[tensor]});
      flat = end;
    }
  }
}

/// Calls visit(Piece) for every piece of the plan, on all threads.
template <class Visit>
void for_each_piece_in_parallel(const Plan& plan, Visit visit) {
  parallel_for(units_of(plan), [&](int64 first, int64 last) {
    for_each_piece(plan, first, last, visit);
    fence();
  });
}

/// How many elements of `list` are before the piece's first address that is a multiple of 32 bytes.
inline int64 misaligned_head(const Plan& plan, const Piece& piece, int list) {
  const char* data = address_of(plan, whole(piece), list);
  const auto past = reinterpret_cast<unsigned long long>(data) % 32;
  return past == 0 ? 0 : static_cast<int64>(32 - past) / size_of(plan.dtype(piece.tensor, list));
}

/// Calls visit(Span) for each block of a piece, the first of `head` elements (0: a whole block).
template <class Visit>
void for_each_block(const Piece& piece, int64 head, Visit visit) {
  int64 begin = piece.begin;
  int64 count = head == 0 ? kBlock : head;
  while (begin < piece.end) {
    count = std::min(count, piece.end - begin);
    visit(Span{piece.tensor, begin, static_cast<int>(count), piece.end - begin - count});
    begin += count;
    count = kBlock;
  }
}

/// Whether to use non-temporal stores for `list`: there are any, it is large, and no input is the
/// same memory.
inline bool streams(const Plan& plan, int list) {
  if (!can_stream()) return false;
  int64 bytes = 0;
  for (int64 t = 0; t < plan.tensors(); ++t) {
    for (int other = 0; other < list; ++other) {
      if (plan.address(t, other) == plan.address(t, list)) return false;
    }
    bytes += (plan.offsets[t + 1] - plan.offsets[t]) * size_of(plan.dtype(t, list));
  }
  return bytes >= kStreamedBytes;
}

inline bool is_aligned(const Plan& plan, const Span& span, int list) {
  return reinterpret_cast<unsigned long long>(address_of(plan, span, list)) % 32 == 0;
}

/// Reports a non-finite value in `tensor`. Threads that race here all write the same.
inline void raise_flags(const Plan& plan, int64 tensor, const Flags& flags) {
  if (flags.found_inf != nullptr) {
    float yes = 1.0f;  // clang takes no pointer to a constant
    __atomic_store(flags.found_inf, &yes, __ATOMIC_RELAXED);
  }
  if (flags.per_tensor != nullptr) {
    __atomic_store_n(flags.per_tensor + plan.positions[tensor], uint8{1}, __ATOMIC_RELAXED);
  }
}

/// Calls visit(Span, bool stream) -> bool for every block of the plan, on all threads, and raises
/// the flags of the tensors for which it returned true. `output` is the list that is written.
template <class Visit>
void transform(const Plan& plan, int output, const Flags& flags, Visit visit) {
  const bool large = streams(plan, output);
  for_each_piece_in_parallel(plan, [&](const Piece& piece) {
    bool found = false;
    const int64 head = large ? misaligned_head(plan, piece, output) : 0;
    for_each_block(piece, head, [&](const Span& span) {
      found |= visit(span, large && is_aligned(plan, span, output));
    });
    if (found) raise_flags(plan, piece.tensor, flags);
  });
}

}  // namespace torchamp::cpu
