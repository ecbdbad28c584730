// Lists of tensors for the tests.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "backends/plan.h"
#include "math/float16.h"

namespace kernel_tests {

using torchamp::bfloat16;
using torchamp::DType;
using torchamp::float16;
using torchamp::int32;
using torchamp::int64;
using torchamp::Plan;
using torchamp::uint8;

inline const DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

inline int64 bytes_of(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

class Tensor {
 public:
  /// `misalignment`: how many elements past a multiple of 16 bytes the first one lies.
  Tensor(DType dtype, int64 count, int64 misalignment = 0)
      : dtype_(dtype),
        count_(count),
        memory_(static_cast<char*>(std::malloc((misalignment + count) * bytes_of(dtype)))),
        data_(memory_.get() + misalignment * bytes_of(dtype)) {
    for (int64 i = 0; i < count; ++i) set(i, 0.0f);
  }

  DType dtype() const { return dtype_; }
  int64 count() const { return count_; }
  void* data() const { return data_; }

  float operator[](int64 i) const {
    if (dtype_ == DType::kFloat16) return torchamp::to_float(read<float16>(i));
    if (dtype_ == DType::kBFloat16) return torchamp::to_float(read<bfloat16>(i));
    return read<float>(i);
  }

  /// Rounds `value` to the tensor's dtype.
  void set(int64 i, float value) {
    if (dtype_ == DType::kFloat16) return write(i, torchamp::from_float<float16>(value));
    if (dtype_ == DType::kBFloat16) return write(i, torchamp::from_float<bfloat16>(value));
    write(i, value);
  }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  template <class T>
  T read(int64 i) const {
    T value;
    std::memcpy(&value, data_ + i * sizeof(T), sizeof(T));
    return value;
  }

  template <class T>
  void write(int64 i, T value) {
    std::memcpy(data_ + i * sizeof(T), &value, sizeof(T));
  }

  DType dtype_;
  int64 count_;
  std::unique_ptr<char, Free> memory_;
  char* data_;
};

using TensorList = std::vector<Tensor>;

/// A tensor of zeros in another dtype, with the same size and misalignment.
inline Tensor retyped(const Tensor& tensor, DType dtype) {
  const auto past = reinterpret_cast<std::uintptr_t>(tensor.data()) % 16;
  return Tensor(dtype, tensor.count(), static_cast<int64>(past) / bytes_of(tensor.dtype()));
}

inline Tensor copy_of(const Tensor& tensor) {
  Tensor copy(tensor.dtype(), tensor.count());
  std::memcpy(copy.data(), tensor.data(), tensor.count() * bytes_of(tensor.dtype()));
  return copy;
}

inline TensorList copy_of(const TensorList& list) {
  TensorList copies;
  for (const Tensor& tensor : list) copies.push_back(copy_of(tensor));
  return copies;
}

/// The plan of a call with these lists. Tensor t is at position 2 · t, as if every second tensor
/// were missing.
inline Plan plan_of(const std::vector<const TensorList*>& lists) {
  Plan plan;
  plan.lists = static_cast<int>(lists.size());
  for (std::size_t t = 0; t < lists.front()->size(); ++t) {
    for (const TensorList* list : lists) {
      plan.data.push_back((*list)[t].data());
      plan.dtypes.push_back((*list)[t].dtype());
    }
    plan.offsets.push_back(plan.offsets.back() + lists.front()->at(t).count());
    plan.positions.push_back(static_cast<int32>(2 * t));
  }
  return plan;
}

/// Values over the range of float16 and slightly beyond, with zeros and subnormals.
inline void randomise(TensorList& list, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> mantissa;
  std::uniform_int_distribution<int> exponent(-30, 13);
  for (Tensor& tensor : list) {
    for (int64 i = 0; i < tensor.count(); ++i) {
      tensor.set(i, random() % 16 == 0 ? 0.0f : std::ldexp(mantissa(random), exponent(random)));
    }
  }
}

}  // namespace kernel_tests
