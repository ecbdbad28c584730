// The tensors for testing every op: all dtypes in one list, sizes around each boundary of the walk,
// and addresses that can and cannot be aligned together.
#pragma once

#include <algorithm>

#include "tensors.h"

namespace kernel_tests {

inline const std::vector<int64> kSizes = {1, 7, 8, 9, 31, 257, 2047, 2048, 2049};
inline const int kTinyTensors = 2500;

/// Misalignments of an op's lists.
inline const std::vector<std::vector<int64>> kMisalignments = {
    {0, 0, 0}, {1, 1, 1}, {5, 1, 5}, {1, 0, 0}, {0, 3, 1}};

/// `lists` lists of the same sizes, which cycle through all combinations of dtypes and
/// misalignments, and through all sizes.
inline std::vector<TensorList> all_cases(int lists) {
  std::vector<TensorList> cases(lists);
  int combinations = 1;
  for (int list = 0; list < lists; ++list) combinations *= 3;
  for (int dtypes = 0; dtypes < combinations; ++dtypes) {
    for (const auto& misaligned : kMisalignments) {
      for (const int64 size : kSizes) {
        for (int list = 0, rest = dtypes; list < lists; ++list, rest /= 3) {
          cases[list].emplace_back(kDTypes[rest % 3], size, misaligned[list]);
        }
      }
    }
  }
  for (int list = 0; list < lists; ++list) randomise(cases[list], 1 + list);
  return cases;
}

/// More tensors than a table holds, of one to three elements each.
inline std::vector<TensorList> tiny_cases(int lists) {
  std::vector<TensorList> cases(lists);
  for (int t = 0; t < kTinyTensors; ++t) {
    for (int list = 0; list < lists; ++list) {
      cases[list].emplace_back(kDTypes[(t + list) % 3], 1 + t % 3, t % 2);
    }
  }
  for (int list = 0; list < lists; ++list) randomise(cases[list], 11 + list);
  return cases;
}

/// Appends the second lists' tensors to the first's.
inline void append(std::vector<TensorList>& lists, std::vector<TensorList> more) {
  for (std::size_t list = 0; list < lists.size(); ++list) {
    std::move(more[list].begin(), more[list].end(), std::back_inserter(lists[list]));
  }
}

/// Removes the first tensors of each list, and returns them.
inline std::vector<TensorList> take(std::vector<TensorList>& lists, std::size_t tensors) {
  std::vector<TensorList> taken(lists.size());
  for (std::size_t list = 0; list < lists.size(); ++list) {
    const auto begin = lists[list].begin();
    const auto end = begin + std::min(tensors, lists[list].size());
    std::move(begin, end, std::back_inserter(taken[list]));
    lists[list].erase(begin, end);
  }
  return taken;
}

inline const float kInfinity = INFINITY;

/// Puts non-finite values at the start, the end or the middle of some tensors, and everywhere in
/// others.
inline void spoil(TensorList& list) {
  const float values[] = {kInfinity, -kInfinity, NAN};
  for (std::size_t t = 0; t < list.size(); t += 5) {
    const int64 last = list[t].count() - 1;
    const int64 places[] = {0, last, last / 2};
    list[t].set(places[t / 5 % 3], values[t / 15 % 3]);
    for (int64 i = 0; t % 10 == 0 && i <= last; ++i) list[t].set(i, values[t / 15 % 3]);
  }
}

}  // namespace kernel_tests
