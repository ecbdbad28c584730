// How threads share the elements of a unit: in vectors of at least 16 bytes from the first element
// at which every list is aligned; one by one before and after, and throughout where the lists are
// never aligned together.
//
// An op gives the arithmetic of one element, a struct with
//   kReads                 how many of the first lists are read
//   kWrites                the list that is written, or -1
//   found                  set when something that ought to be finite is not
//   float operator()(...)  from kReads floats to the one to be written
#pragma once

#include "cuda/unit.h"
#include "cuda/vector.h"

namespace torchamp::cuda {

/// Groups of each list that a thread has on their way at once, to hide the latency of memory: more
/// where nothing is written.
template <class Element>
constexpr int kBatch = Element::kWrites < 0 ? 4 : 2 / Element::kReads;

/// The threads that walk one unit together.
struct Team {
  int rank;
  int size;
};

TORCHAMP_DEVICE Team warp_team() {
  return {static_cast<int>(threadIdx.x) % kWarp, kWarp};
}
TORCHAMP_DEVICE Team block_team() {
  return {static_cast<int>(threadIdx.x), kThreads};
}

/// Elements that are visited in groups of n: group g starts at begin + g · n, and `gap` further
/// from group `gap_at` on.
template <int n>
struct Groups {
  int begin;
  int count;
  int gap_at = 0;
  int gap = 0;

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
  Bits<n> bits[count];
};

/// One uniform branch a batch: the loads stand together, so that none waits for another.
template <int kSize, int n, int count>
TORCHAMP_DEVICE void load_batch(const char* list, const Groups<n>& groups, Turn turn,
                                Batch<n, count>& batch) {
  TORCHAMP_UNROLL
  for (int k = 0; k < count; ++k) {
    const int group = turn.first + k * turn.stride;
    if (group < groups.count) {
      load_bytes<n * kSize>(list + groups[group] * kSize, batch.bits[k].words);
    }
  }
}

template <int n, class Element, int kLists>
TORCHAMP_DEVICE void apply(const Slice<kLists>& slice, Element& element, int i,
                           const Batch<n, kBatch<Element>> (&batches)[Element::kReads], int k) {
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
  Batch<n, kBatch<Element>> batches[Element::kReads];
  TORCHAMP_UNROLL
  for (int list = 0; list < Element::kReads; ++list) {
    if (slice.dtype[list] == DType::kFloat32) {
      load_batch<4>(slice.address[list], groups, turn, batches[list]);
    } else {
      load_batch<2>(slice.address[list], groups, turn, batches[list]);
    }
  }
  TORCHAMP_UNROLL
  for (int k = 0; k < kBatch<Element>; ++k) {
    const int group = turn.first + k * turn.stride;
    if (group < groups.count) apply<n>(slice, element, groups[group], batches, k);
  }
}

template <int n, class Element, int kLists>
TORCHAMP_DEVICE void walk_groups(const Slice<kLists>& slice, Element& element,
                                 const Groups<n>& groups, Team team) {
  TORCHAMP_ROLLED
  for (int first = team.rank; first < groups.count; first += kBatch<Element> * team.size) {
    take_turn(slice, element, groups, {first, team.size});
  }
}

template <int kLists>
TORCHAMP_DEVICE bool is_aligned_at(const Slice<kLists>& slice, int i) {
  unsigned long long bits = 0;
  TORCHAMP_UNROLL
  for (int list = 0; list < kLists; ++list) {
    if (slice.address[list] == nullptr) continue;
    const char* address = slice.address[list] + i * size_of(slice.dtype[list]);
    bits |= reinterpret_cast<unsigned long long>(address);
  }
  return bits % kVectorBytes == 0;
}

/// The vectors of n elements that lie aligned in all lists.
template <int n, int kLists>
TORCHAMP_DEVICE Groups<n> aligned_vectors(const Slice<kLists>& slice) {
  int head = 0;
  TORCHAMP_ROLLED
  while (head < n && !is_aligned_at(slice, head)) ++head;
  if (head == n) return {0, 0};
  return {head, (slice.count - head) / n};
}

/// What the vectors leave over.
template <int n>
TORCHAMP_DEVICE Groups<1> rest_of(int count, const Groups<n>& vectors) {
  const int gap = vectors.count * n;
  return {0, count - gap, vectors.begin, gap};
}

template <int n, class Element, int kLists>
TORCHAMP_DEVICE Groups<1> walk_vectors(const Slice<kLists>& slice, Element& element, Team team) {
  const Groups<n> vectors = aligned_vectors<n>(slice);
  walk_groups(slice, element, vectors, team);
  return rest_of(slice.count, vectors);
}

/// Applies `element` to the slice. Vectors are such that the narrowest list fills 16 bytes.
template <class Element, int kLists>
TORCHAMP_DEVICE void walk(const Slice<kLists>& slice, Element& element, Team team) {
  bool narrow = false;
  TORCHAMP_UNROLL
  for (int list = 0; list < kLists; ++list) narrow |= slice.dtype[list] != DType::kFloat32;
  const Groups<1> rest =
      narrow ? walk_vectors<8>(slice, element, team) : walk_vectors<4>(slice, element, team);
  walk_groups(slice, element, rest, team);
}

/// Called by whole warps: applies `element` to the slice, and reports what it found.
template <class Element, int kLists>
TORCHAMP_DEVICE void walk_and_report(const Slice<kLists>& slice, Element element, Flags flags) {
  walk(slice, element, warp_team());
  report(element.found, flags, slice.position);
}

}  // namespace torchamp::cuda
