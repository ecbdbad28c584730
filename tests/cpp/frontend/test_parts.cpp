#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/rnn.h>
#include <torchamp/cast.h>

#include "tensors.h"

namespace elsewhere {

struct Output {
  at::Tensor logits;
  std::vector<at::Tensor> hidden;
  double seconds = 0.0;
  std::function<void()> done;
};

inline auto amp_members(Output& output) {
  return std::tie(output.logits, output.hidden);
}

class Hidden {
 public:
  explicit Hidden(at::Tensor state) : state_(std::move(state)) {}
  const at::Tensor& state() const { return state_; }

 private:
  friend auto amp_members(Hidden& hidden) { return std::tie(hidden.state_); }
  at::Tensor state_;
};

struct Callback {
  std::function<void()> call;
};

inline auto amp_members(Callback&) {
  return std::tie();
}

struct Opaque {
  std::shared_ptr<at::Tensor> tensor;
};

struct Counts {
  int64_t correct;
  const char* name;
};

}  // namespace elsewhere

namespace torchamp {
namespace {

using at::Tensor;

const Tensor kFloats = tensor_of({1.5});
const Tensor kLongs = tensor_of({1}, at::kLong);

std::string dtype_of(const Tensor& tensor) {
  return tensor.defined() ? toString(tensor.scalar_type()) : "undefined";
}

/// The dtypes of the tensors in `value` after casting.
template <class T>
std::string cast(T value) {
  std::string dtypes;
  T result = cast_floating(value, at::kHalf);
  for_each_tensor(result, [&](const Tensor& tensor) { dtypes += dtype_of(tensor) + ' '; });
  std::string untouched;
  for_each_tensor(value, [&](const Tensor& t) { untouched += dtype_of(t) + ' '; });
  EXPECT_EQ(untouched.find("Half"), std::string::npos) << "the caller's were changed";
  return dtypes;
}

TEST(Parts, ContainersOfTensors) {
  EXPECT_EQ(cast(kFloats), "Half ");
  EXPECT_EQ(cast(std::vector{kFloats, kLongs, Tensor()}), "Half Long undefined ");
  EXPECT_EQ(cast(std::list{kFloats, kLongs}), "Half Long ");
  EXPECT_EQ(cast(std::deque{kFloats, kLongs}), "Half Long ");
  EXPECT_EQ(cast(std::array{kFloats, kLongs}), "Half Long ");
  EXPECT_EQ(cast(std::pair{7, kFloats}), "Half ");
  EXPECT_EQ(cast(std::tuple{kFloats, 7, kLongs, std::string("text")}), "Half Long ");
  EXPECT_EQ(cast(std::optional(kFloats)), "Half ");
  EXPECT_EQ(cast(std::optional<Tensor>()), "");
  EXPECT_EQ(cast(std::map<std::string, Tensor>{{"a", kFloats}, {"b", kLongs}}), "Half Long ");
  EXPECT_EQ(cast(std::unordered_map<int, Tensor>{{1, kFloats}}), "Half ");
}

TEST(Parts, AVariantsPartIsWhatItHolds) {
  using Variant = std::variant<Tensor, std::vector<Tensor>, std::string>;
  EXPECT_EQ(cast(Variant(kFloats)), "Half ");
  EXPECT_EQ(cast(Variant(std::vector{kFloats, kLongs})), "Half Long ");
  EXPECT_EQ(cast(Variant(std::string("text"))), "");
}

TEST(Parts, ContainersOfContainers) {
  using Inner = std::pair<std::optional<Tensor>, std::array<Tensor, 2>>;
  using Nested = std::map<std::string, std::vector<std::tuple<Inner, int, Tensor>>>;
  const Nested nested = {{"key", {{{kFloats, {kFloats, kLongs}}, 7, kFloats}}},
                         {"none", {{{std::nullopt, {}}, 8, {}}}}};
  EXPECT_EQ(cast(nested), "Half Half Long Half undefined undefined undefined ");
  EXPECT_EQ(std::get<1>(cast_floating(nested, at::kHalf).at("none").at(0)), 8);
}

TEST(Parts, AnOrderedDictKeepsItsOrderAndKeys) {
  torch::OrderedDict<std::string, Tensor> dict;
  dict.insert("second", kFloats);
  dict.insert("first", kLongs);
  EXPECT_EQ(cast(dict), "Half Long ");
  EXPECT_EQ(cast_floating(dict, at::kHalf).keys(), dict.keys());
}

TEST(Parts, APackedSequenceKeepsItsIndices) {
  const Tensor lengths = tensor_of({1, 3}, at::kLong);
  const auto pack = [&](const Tensor& padded) {
    return torch::nn::utils::rnn::pack_padded_sequence(padded, lengths, /*batch_first=*/true,
                                                       /*enforce_sorted=*/false);
  };
  const auto packed = pack(Random(61).normal({2, 3, 4}, at::kFloat, at::kCPU));
  const auto result = cast_floating(packed, at::kHalf);
  EXPECT_TRUE(same_bits(result.data(), packed.data().to(at::kHalf)));
  EXPECT_TRUE(result.batch_sizes().is_same(packed.batch_sizes()));
  EXPECT_TRUE(result.sorted_indices().is_same(packed.sorted_indices()));
  EXPECT_TRUE(result.unsorted_indices().is_same(packed.unsorted_indices()));
  const auto symbols = pack(at::arange(6, at::kLong).view({2, 3}));
  EXPECT_EQ(cast_floating(symbols, at::kHalf).data().scalar_type(), at::kLong);
}

TEST(Parts, MembersThatATypeNames) {
  const elsewhere::Output output{kFloats, {kFloats, kLongs}, 2.5, [] {}};
  EXPECT_EQ(cast(output), "Half Half Long ");
  EXPECT_EQ(cast(std::vector{output, output}), "Half Half Long Half Half Long ");
  const elsewhere::Output result = cast_floating(output, at::kHalf);
  EXPECT_EQ(result.seconds, 2.5);
  EXPECT_TRUE(result.done);
  EXPECT_EQ(dtype_of(cast_floating(elsewhere::Hidden(kFloats), at::kHalf).state()), "Half");
}

TEST(Parts, WhatMoves) {
  using MoveOnly = std::pair<std::unique_ptr<int>, Tensor>;
  const MoveOnly result = cast_floating(MoveOnly(std::make_unique<int>(7), kFloats), at::kHalf);
  EXPECT_EQ(*result.first, 7);
  EXPECT_EQ(dtype_of(result.second), "Half");
}

TEST(Parts, KnowWhetherTensorsArePossible) {
  EXPECT_TRUE((holds_tensors<std::map<int, std::vector<Tensor>>>));
  EXPECT_TRUE(holds_tensors<elsewhere::Output>);
  EXPECT_FALSE((holds_tensors<std::pair<int, std::vector<bool>>>));
  EXPECT_FALSE(holds_tensors<elsewhere::Callback>);
  EXPECT_FALSE(holds_tensors<elsewhere::Opaque>);
}

TEST(Parts, KnowWhichTypesCouldHideTensors) {
  EXPECT_TRUE((is_understood<std::tuple<Tensor, int, std::string, elsewhere::Counts>>));
  EXPECT_TRUE((is_understood<std::vector<elsewhere::Output>>));
  EXPECT_TRUE(is_understood<elsewhere::Callback>);
  EXPECT_TRUE(is_understood<at::IntArrayRef>);
  EXPECT_FALSE(is_understood<elsewhere::Opaque>);
  EXPECT_FALSE((is_understood<std::pair<Tensor, elsewhere::Opaque>>));
  EXPECT_FALSE(is_understood<at::TensorList>);
  EXPECT_FALSE(is_understood<std::shared_ptr<Tensor>>);
}

}  // namespace
}  // namespace torchamp
