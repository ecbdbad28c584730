#include "lists.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

namespace torchamp {
namespace {

using at::Tensor;

using Sizes = std::vector<int64_t>;
const std::vector<Sizes> kSizes = {{},    {1}, {3}, {31},  {255},        {256},
                                   {257}, {0}, {7}, {512}, {2, 3, 5, 7}, {4, 3, 9, 5}};
/// Sizes that reach the end of a unit, alone or together, are slow.
const std::vector<Sizes> kLargeSizes = {{32767}, {32768}, {32769}, {20, 50, 33}};

/// The specification of a position: sizes, and a dtype and layout for each list.
struct Position {
  Sizes sizes;
  std::vector<at::ScalarType> dtypes;
  std::vector<Layout> layouts;
};

/// Digits of `number` in base `kDtypes.size()`: number 0 … 4^count - 1 names each combination once.
std::vector<at::ScalarType> dtypes_numbered(int64_t number, int count) {
  std::vector<at::ScalarType> dtypes;
  for (int list = 0; list < count; ++list, number /= static_cast<int64_t>(kDtypes.size())) {
    dtypes.push_back(kDtypes[number % kDtypes.size()]);
  }
  return dtypes;
}

Sizes random_sizes(Random& random) {
  const auto& sizes = random.below(16) == 0 ? kLargeSizes : kSizes;
  return sizes[random.below(static_cast<int64_t>(sizes.size()))];
}

/// Every second position has the same layout in all lists, like the tensors of a model.
std::vector<Layout> random_layouts(int count, Random& random) {
  std::vector<Layout> layouts(count, static_cast<Layout>(random.below(kLayouts)));
  if (random.below(2) == 0) return layouts;
  for (Layout& layout : layouts) layout = static_cast<Layout>(random.below(kLayouts));
  return layouts;
}

bool is_flat(const std::vector<Tensor>& row) {
  for (const Tensor& tensor : row) {
    if (tensor.scalar_type() == at::kDouble || !tensor.is_non_overlapping_and_dense()) return false;
    const bool both_contiguous = tensor.is_contiguous() && row.front().is_contiguous();
    if (tensor.strides() != row.front().strides() && !both_contiguous) return false;
  }
  return true;
}

std::string described(const Position& position, size_t i) {
  std::string text = "position " + std::to_string(i) + ", sizes [";
  for (const int64_t size : position.sizes) text += std::to_string(size) + " ";
  text += "]";
  for (size_t list = 0; list < position.dtypes.size(); ++list) {
    text += std::string(", ") + at::toString(position.dtypes[list]) + " " +
            name(position.layouts[list]);
  }
  return text;
}

void append(Lists& all, const Position& position, Random& random, at::Device device) {
  std::vector<Tensor> row;
  for (size_t list = 0; list < position.dtypes.size(); ++list) {
    const Tensor values = random.normal(position.sizes, position.dtypes[list], device);
    const bool has_layouts = position.sizes.size() >= 2;
    row.push_back(has_layouts
                      ? laid_out(values, position.layouts[list])
                      : laid_out(values.view({-1, 1}), position.layouts[list]).view_as(values));
  }
  all.names.push_back(described(position, all.names.size()));
  all.flat.push_back(is_flat(row));
  for (size_t list = 0; list < row.size(); ++list) all.lists[list].push_back(row[list]);
}

/// An undefined tensor in one list excludes that position.
void append_hole(Lists& all, int count, int hole, Random& random, at::Device device) {
  all.names.push_back("position " + std::to_string(all.names.size()) + ", undefined in list " +
                      std::to_string(hole));
  all.flat.push_back(true);
  for (int list = 0; list < count; ++list) {
    all.lists[list].push_back(list == hole ? Tensor() : random.normal({5}, at::kFloat, device));
  }
}

}  // namespace

Lists every_dtype(int count, at::Device device) {
  Lists all;
  all.lists.resize(count);
  Random random(20 + count);
  const auto combinations = static_cast<int64_t>(std::pow(kDtypes.size(), count));
  for (int64_t i = 0; i < 4 * std::max<int64_t>(combinations, 64); ++i) {
    append(all, {random_sizes(random), dtypes_numbered(i, count), random_layouts(count, random)},
           random, device);
    if (i % 50 == 0) append_hole(all, count, static_cast<int>(i % count), random, device);
  }
  return all;
}

Lists mixed(int count, int64_t positions, at::Device device) {
  Lists all;
  all.lists.resize(count);
  Random random(60 + count);
  for (int64_t i = 0; i < positions; ++i) {
    std::vector<at::ScalarType> dtypes;
    for (int list = 0; list < count; ++list) dtypes.push_back(kDtypes[random.below(3 + i % 2)]);
    append(all, {random_sizes(random), dtypes, random_layouts(count, random)}, random, device);
    if (i % 20 == 0) append_hole(all, count, static_cast<int>(i / 20 % count), random, device);
  }
  return all;
}

at::ScalarType precision_of(std::initializer_list<Tensor> inputs, const Tensor& output) {
  if (output.scalar_type() != at::kDouble) return output.scalar_type();
  for (const Tensor& input : inputs) {
    if (input.scalar_type() == at::kDouble) return at::kDouble;
  }
  return at::kFloat;
}

bool kernels_are_off() {
  const char* backend = std::getenv("TORCHAMP_KERNELS");
  return backend != nullptr && std::strcmp(backend, "aten") == 0;
}

}  // namespace torchamp
