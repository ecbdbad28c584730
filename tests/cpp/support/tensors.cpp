#include "tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace torchamp {
namespace {

using at::Tensor;
using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

bool is_same_bits(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

template <class Agree>
AssertionResult compare(const Tensor& got, const Tensor& expected, Agree agree) {
  if (got.sizes() != expected.sizes() || got.scalar_type() != expected.scalar_type()) {
    return AssertionFailure() << "got " << got.scalar_type() << got.sizes() << ", expected "
                              << expected.scalar_type() << expected.sizes();
  }
  const Tensor a = got.detach().to(at::kCPU, at::kDouble).contiguous();
  const Tensor b = expected.detach().to(at::kCPU, at::kDouble).contiguous();
  const double *x = a.const_data_ptr<double>(), *y = b.const_data_ptr<double>();
  for (int64_t i = 0, count = a.numel(); i < count; ++i) {
    if (agree(x[i], y[i])) continue;
    return AssertionFailure() << "element " << i << " of " << count << ": got "
                              << ::testing::PrintToString(x[i]) << ", expected "
                              << ::testing::PrintToString(y[i]);
  }
  return AssertionSuccess();
}

Tensor copied_into(Tensor memory, const Tensor& values) {
  memory.copy_(values);
  return memory;
}

}  // namespace

double spacing_at_one(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    case at::kFloat:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}

Tensor tensor_of(const std::vector<double>& values, at::ScalarType dtype, at::Device device) {
  Tensor wide = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), wide.mutable_data_ptr<double>());
  return wide.to(device, dtype);
}

Tensor scalar_of(double value, at::ScalarType dtype, at::Device device) {
  return at::full({}, value, at::TensorOptions().dtype(dtype).device(device));
}

Tensor clear_flags(int64_t length, at::Device device) {
  return at::zeros({length}, at::TensorOptions().dtype(at::kByte).device(device));
}

Tensor Random::normal(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  Tensor values = at::empty(sizes, at::kFloat);
  std::normal_distribution<float> distribution;
  float* data = values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = distribution(engine_);
  return values.to(device, dtype);
}

int64_t Random::below(int64_t count) {
  return std::uniform_int_distribution<int64_t>(0, count - 1)(engine_);
}

const char* name(Layout layout) {
  constexpr const char* kNames[] = {"contiguous", "channels_last", "transposed", "every_other",
                                    "misaligned"};
  return kNames[static_cast<int>(layout)];
}

Tensor laid_out(const Tensor& tensor, Layout layout) {
  switch (layout) {
    case Layout::kContiguous:
      return tensor.clone(at::MemoryFormat::Contiguous);
    case Layout::kChannelsLast:
      return tensor.clone(tensor.dim() == 4 ? at::MemoryFormat::ChannelsLast
                                            : at::MemoryFormat::Contiguous);
    case Layout::kTransposed:
      return tensor.transpose(0, -1).clone(at::MemoryFormat::Contiguous).transpose(0, -1);
    case Layout::kEveryOther: {
      auto sizes = tensor.sizes().vec();
      sizes.back() *= 2;
      return copied_into(at::zeros(sizes, tensor.options()).slice(-1, 0, std::nullopt, 2), tensor);
    }
    case Layout::kMisaligned: {
      const Tensor memory = at::zeros({tensor.numel() + 1}, tensor.options());
      return copied_into(memory.narrow(0, 1, tensor.numel()).view(tensor.sizes()), tensor);
    }
  }
  return {};
}

AssertionResult same_bits(const Tensor& got, const Tensor& expected) {
  return compare(got, expected, is_same_bits);
}

AssertionResult close(const Tensor& got, const Tensor& expected, at::ScalarType precision) {
  const double tolerance = 2 * spacing_at_one(precision);
  return compare(got, expected, [tolerance](double x, double y) {
    return is_same_bits(x, y) || std::abs(x - y) <= tolerance * std::max(1.0, std::abs(y));
  });
}

::testing::AssertionResult same_bits(const std::vector<Tensor>& got,
                                     const std::vector<Tensor>& expected) {
  if (got.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << got.size() << " tensors where " << expected.size() << " were expected";
  }
  for (size_t i = 0; i < got.size(); ++i) {
    auto result = same_bits(got[i], expected[i]);
    if (!result) return result << ", in tensor " << i;
  }
  return ::testing::AssertionSuccess();
}

std::vector<Tensor> clones(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) copies.push_back(tensor.defined() ? tensor.clone() : tensor);
  return copies;
}

}  // namespace torchamp
