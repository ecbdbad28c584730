// How threads share the elements of a unit: in vectors of eight from the first element at which
// the lists are aligned to 16 bytes; one by one before and after, and throughout where the lists
// are never aligned together. Only the first list may be misaligned to the rest: grads that are
// views of a bucket are.
//
// An op gives the arithmetic of one element, a struct with
//   kReads                 how many of the first lists are read
//   kWrites                the list that is written, or -1
//   kBatch                 groups of each list that a thread has in flight at once, to hide memory
//                          latency
//   reads(list)            whether a list is read after all
//   found                  set when something that ought to be finite is not
//   float operator()(...)  from kReads floats to the one to be written
#pragma once

#include "cuda/unit.h"
#include "cuda/vector.h"

namespace torchamp::cuda {

/// The threads that walk one unit together.
struct Team {
  int rank;
  int size;
};

TORCHAMP_DEVICE Team warp_team() {
  return {static_cast<int>(threadIdx.x) % kWarp, kWarp};
}
TORCHAMP_DEVICE Team block_team() {
  return {static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
}

/// Elements that are visited in groups of n: group g starts at begin + g · n, and `gap` elements
/// later from group `gap_at` on. `mixed`: the first list is misaligned to the rest.
template <int n>
struct Groups {
  int begin;
  int count;
  int gap_at = 0;
  int gap = 0;
  bool mixed = false;

  TORCHAMP_DEVICE int operator[](int group) const {
    return begin + group * n + (group >= gap_at ? gap : 0);
  }
};

/// A thread's groups in one turn: `first`, and each `stride` further.
struct Turn {
  int first;
  int stride;
};

template <int n, int count>
struct Batch {
  Bits<n> bits[count] = {};
};

/// One uniform branch per batch: the loads are consecutive, so that none waits for another.
template <int n, int count, class Load>
TORCHAMP_DEVICE void load_batch(const char* list, int size, const Groups<n>& groups, Turn turn,
                                Batch<n, count>& batch, Load load) {
  TORCHAMP_UNROLL
  for (int k = 0; k < count; ++k) {
    const int group = turn.first + k * turn.stride;
    if (group < groups.count) load(list + groups[group] * size, batch.bits[k].words);
  }
}

template <int n, int count>
TORCHAMP_DEVICE void load_batch(DType dtype, const char* list, bool is_misaligned,
                                const Groups<n>& groups, Turn turn, Batch<n, count>& batch) {
  const bool is_wide = dtype == DType::kFloat32;
  if (is_wide && is_misaligned) {
    load_batch(list, 4, groups, turn, batch, load_words<n>);
  } else if (is_wide) {
    load_batch(list, 4, groups, turn, batch, load_bytes<4 * n>);
  } else if (is_misaligned) {
    load_batch(list, 2, groups, turn, batch, load_shorts<n>);
  } else {
    load_batch(list, 2, groups, turn, batch, load_bytes<2 * n>);
  }
}

/// Groups that a thread has in flight. A single list has too few elements outside its vectors for a
/// second one.
template <int n, class Element, int kLists>
constexpr int kBatchOf = n == 1 && kLists == 1 ? 1 : Element::kBatch;

template <int n, class Element, int kLists, int count>
TORCHAMP_DEVICE void apply(const Slice<kLists>& slice, Element& element, int i,
                           const Batch<n, count> (&batches)[Element::kReads], int k) {
  float values[Element::kReads][n];
  TORCHAMP_UNROLL
  for (int list = 0; list < Element::kReads; ++list) {
    widen<n>(slice.dtype[list], batches[list].bits[k], values[list]);
  }
  float results[n];
  TORCHAMP_UNROLL
  for (int lane = 0; lane < n; ++lane) {
    if constexpr (Element::kReads == 1) results[lane] = element(values[0][lane]);
    if constexpr (Element::kReads == 2) results[lane] = element(values[0][lane], values[1][lane]);
  }
  if constexpr (Element::kWrites >= 0) {
    const DType dtype = slice.dtype[Element::kWrites];
    char* to = slice.address[Element::kWrites] + i * size_of(dtype);
    element.found |= store_values<n>(dtype, to, results);
  }
}

template <int n, class Element, int kLists>
TORCHAMP_DEVICE void take_turn(const Slice<kLists>& slice, Element& element,
                               const Groups<n>& groups, Turn turn) {
  constexpr int kBatch = kBatchOf<n, Element, kLists>;
  Batch<n, kBatch> batches[Element::kReads];
  TORCHAMP_UNROLL
  for (int list = 0; list < Element::kReads; ++list) {
    if (!element.reads(list)) continue;
    const bool is_misaligned = kLists > 1 && list == 0 && groups.mixed;
    load_batch(slice.dtype[list], slice.address[list], is_misaligned, groups, turn, batches[list]);
  }
  TORCHAMP_UNROLL
  for (int k = 0; k < kBatch; ++k) {
    const int group = turn.first + k * turn.stride;
    if (group < groups.count) apply<n>(slice, element, groups[group], batches, k);
  }
}

template <int n, class Element, int kLists>
TORCHAMP_DEVICE void walk_groups(const Slice<kLists>& slice, Element& element,
                                 const Groups<n>& groups, Team team) {
  TORCHAMP_ROLLED
  for (int first = team.rank; first < groups.count;
       first += kBatchOf<n, Element, kLists> * team.size) {
    take_turn(slice, element, groups, {first, team.size});
  }
}

/// Whether the lists from number `from` on are aligned at element i.
template <int kLists>
TORCHAMP_DEVICE bool is_aligned_at(const Slice<kLists>& slice, int i, int from) {
  unsigned long long bits = 0;
  TORCHAMP_UNROLL
  for (int list = 0; list < kLists; ++list) {
    if (list < from || slice.address[list] == nullptr) continue;
    const char* address = slice.address[list] + i * size_of(slice.dtype[list]);
    bits |= reinterpret_cast<unsigned long long>(address);
  }
  return bits % kVectorBytes == 0;
}

/// The first element at which they are, or n where they never are.
template <int n, int kLists>
TORCHAMP_DEVICE int aligned_head(const Slice<kLists>& slice, int from) {
  int head = 0;
  TORCHAMP_ROLLED
  while (head < n && !is_aligned_at(slice, head, from)) ++head;
  return head;
}

/// The vectors of n elements that are aligned in all lists, or in all but the first of several.
template <int n, int kLists>
TORCHAMP_DEVICE Groups<n> aligned_vectors(const Slice<kLists>& slice) {
  const int head = aligned_head<n>(slice, 0);
  if (head < n) return {head, (slice.count - head) / n};
  if (kLists == 1) return {0, 0};
  const int mixed_head = aligned_head<n>(slice, 1);
  if (mixed_head == n) return {0, 0};
  return {mixed_head, (slice.count - mixed_head) / n, 0, 0, /*mixed=*/true};
}

/// The elements outside the vectors.
template <int n>
TORCHAMP_DEVICE Groups<1> rest_of(int count, const Groups<n>& vectors) {
  const int gap = vectors.count * n;
  return {0, count - gap, vectors.begin, gap};
}

/// Elements of a vector, such that 16-bit ones fill 16 bytes.
constexpr int kVector = 8;

/// Applies `element` to the slice.
template <class Element, int kLists>
TORCHAMP_DEVICE void walk(const Slice<kLists>& slice, Element& element, Team team) {
  const Groups<kVector> vectors = aligned_vectors<kVector>(slice);
  walk_groups(slice, element, vectors, team);
  walk_groups(slice, element, rest_of(slice.count, vectors), team);
}

/// Called by whole warps: applies `element` to the slice, reports what it found, and returns it.
template <class Element, int kLists>
TORCHAMP_DEVICE Element walk_and_report(const Slice<kLists>& slice, Element element,
                                        const Flags& flags) {
  walk(slice, element, warp_team());
  report(element.found, flags, slice.position);
  return element;
}

}  // namespace torchamp::cuda
