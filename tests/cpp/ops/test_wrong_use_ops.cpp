// Wrong uses of the ops, of autocast and of functions that it casts.
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torchamp/autocast.h>
#include <torchamp/functions.h>
#include <torchamp/ops.h>

#include "net.h"
#include "wrong_use.h"

namespace torchamp::wrong_use {
namespace {

using at::Tensor;

Tensor floats(int64_t length = 4) {
  return at::ones({length});
}

Tensor of_type(at::ScalarType dtype, int64_t length = 4) {
  return at::ones({length}, dtype);
}

Tensor on_meta(int64_t length = 4) {
  return at::empty({length}, at::kMeta);
}

/// Of one element, as ops take them.
Tensor flag(at::ScalarType dtype = at::kFloat) {
  return at::zeros({}, dtype);
}

Tensor sparse() {
  return floats().to_sparse();
}

Tensor flags(int64_t length, at::ScalarType dtype = at::kByte) {
  return at::zeros({length}, dtype);
}

void unscale(const Tensor& grad, const Tensor& inv_scale, const Tensor& found_inf) {
  const Tensor master = at::zeros_like(grad);
  ops::unscale({grad}, {master}, inv_scale, found_inf);
}

std::vector<WrongUse> of_ops() {
  return {
      {"scale_of_integers", [] { ops::scale({of_type(at::kInt)}, {floats()}, 2, flag()); },
       error<c10::TypeError>(R"(^scale: expected inputs\[0\] to be float16, .*, got Int)")},
      {"scale_of_complex_numbers",
       [] { ops::scale({of_type(at::kComplexFloat)}, {floats()}, 2, flag()); },
       error<c10::TypeError>(R"(^scale: expected inputs\[0\] to be float16, .*, got Complex)")},
      {"scale_of_sparse_tensors", [] { ops::scale({sparse()}, {floats()}, 2, flag()); },
       error<c10::TypeError>(R"(^scale: expected inputs\[0\] to be dense, got layout Sparse)")},
      {"scale_on_two_devices",
       [] {
         ops::scale({floats(), on_meta()}, {floats(), floats()}, 2, flag());
       },
       error(R"(^scale: expected inputs\[1\] to be on cpu, got meta)")},
      {"scale_without_found_inf", [] { ops::scale({floats()}, {floats()}, 2, Tensor()); },
       error<c10::TypeError>("^scale: expected found_inf to be a tensor, got none")},
      {"scale_with_an_integer_found_inf",
       [] { ops::scale({floats()}, {floats()}, 2, flag(at::kInt)); },
       error<c10::TypeError>("^scale: expected found_inf to be Float, got Int")},
      {"scale_with_two_found_infs", [] { ops::scale({floats()}, {floats()}, 2, floats(2)); },
       error(R"(^scale: expected found_inf to have one element, got sizes \[2\])")},
      {"scale_with_too_few_flags",
       [] {
         ops::scale({floats(), floats()}, {floats(), floats()}, 2, flag(), flags(1));
       },
       error("^scale: expected found_inf_per_tensor to have one element per tensor, 2, got 1")},
      {"scale_with_float_flags",
       [] { ops::scale({floats()}, {floats()}, 2, flag(), flags(1, at::kFloat)); },
       error<c10::TypeError>(
           "^scale: expected found_inf_per_tensor to be contiguous Byte, got Flo")},
      {"scale_with_undefined_flags",
       [] { ops::scale({floats()}, {floats()}, 2, flag(), Tensor()); },
       error<c10::TypeError>("^scale: expected found_inf_per_tensor to be a tensor, got none")},
      {"scale_of_nothing", [] { ops::scale({}, {}, 2, flag()); }, right()},
      {"scale_of_undefined_tensors", [] { ops::scale({Tensor()}, {Tensor()}, 2, flag()); },
       right()},
      {"scale_of_an_undefined_input",
       [] {
         const Tensor output = floats();
         ops::scale({Tensor()}, {output}, 2, flag());
         EXPECT_EQ(output.sum().item<float>(), 4);
       },
       right()},
      {"unscale_by_no_scale", [] { unscale(floats(), Tensor(), flag()); },
       error<c10::TypeError>("^unscale: expected inv_scale to be a tensor, got none")},
      {"unscale_by_a_double", [] { unscale(floats(), flag(at::kDouble), flag()); },
       error<c10::TypeError>("^unscale: expected inv_scale to be Float, got Double")},
      {"unscale_by_a_scale_per_element", [] { unscale(floats(), floats(), flag()); },
       error(R"(^unscale: expected inv_scale to have one element, got sizes \[4\])")},
      {"unscale_without_found_inf", [] { unscale(floats(), flag(), Tensor()); },
       error<c10::TypeError>("^unscale: expected found_inf to be a tensor, got none")},
      {"unscale_by_a_scale_elsewhere", [] { unscale(floats(), on_meta(1), flag()); },
       error("^unscale: expected inv_scale to be on cpu, got meta")},
      {"check_of_booleans", [] { ops::check({of_type(at::kBool)}, flag()); },
       error<c10::TypeError>(R"(^check: expected tensors\[0\] to be float16, .*, got Bool)")},
      {"check_l2norm_with_too_many_flags", [] { ops::check_l2norm({floats()}, flag(), flags(2)); },
       error(
           "^check_l2norm: expected found_inf_per_tensor to have one element per tensor, 1, got")},
      {"l2norm_of_sparse_tensors",
       [] {
         ops::l2norm({floats(), sparse()});
       },
       error<c10::TypeError>(R"(^l2norm: expected tensors\[1\] to be dense, got layout Sparse)")},
      {"l2norm_of_nothing", [] { EXPECT_EQ(std::get<0>(ops::l2norm({})).item<float>(), 0); },
       right()},
      {"copy_cast_to_a_transposed_size",
       [] {
         ops::copy_cast({at::ones({2, 3})}, {at::ones({3, 2})});
       },
       error(
           R"(^copy_cast: expected model_params\[0\] to have the sizes of .*\[2, 3\], got \[3, 2)")},
      {"update_of_no_scale", [] { ops::update_scale(Tensor(), flag(at::kInt), flag()); },
       error<c10::TypeError>("^update_scale: expected loss_scale to be a tensor, got none")},
      {"update_without_found_inf", [] { ops::update_scale(flag(), flag(at::kInt), Tensor()); },
       error<c10::TypeError>("^update_scale: expected found_inf to be a tensor, got none")},
  };
}

/// A model at `level` whose autocast is open in this thread.
Model<torch::nn::Linear> open_model(OptLevel level) {
  return initialize(torch::nn::Linear(4, 2), quiet(level));
}

Tensor probabilities(at::ScalarType dtype) {
  return at::ones({2, 2}, dtype) * 0.5;
}

void cross_entropy_at(OptLevel level, at::ScalarType dtype) {
  const auto model = open_model(level);
  at::binary_cross_entropy(probabilities(dtype), probabilities(at::kFloat));
}

std::vector<WrongUse> of_autocast() {
  return {
      {"cross_entropy_of_float16_at_O1", [] { cross_entropy_at(OptLevel::O1, at::kHalf); },
       error<c10::NotImplementedError>("expected float32 tensors, got one in Half.*with_logits")},
      {"cross_entropy_of_bfloat16_at_O4", [] { cross_entropy_at(OptLevel::O4, at::kBFloat16); },
       error<c10::NotImplementedError>("expected float32 tensors, got one in BFloat16.*_logits")},
      {"cross_entropy_of_float32_at_O1", [] { cross_entropy_at(OptLevel::O1, at::kFloat); },
       right()},
      {"exp_of_float16_in_place_at_O1",
       [] {
         const auto model = open_model(OptLevel::O1);
         probabilities(at::kHalf).exp_();
       },
       error<c10::NotImplementedError>("^exp_: expected a float32 tensor, got Half.*call exp, or")},
      {"O1_and_O4_in_one_thread",
       [] {
         const auto model = open_model(OptLevel::O1);
         open_model(OptLevel::O4);
       },
       error("^initialize: autocast to Half is already active.*BFloat16; close that model first")},
      {"autocast_to_float32", [] { const autocast guard(c10::kCPU, at::kFloat); },
       error<c10::ValueError>("^autocast: expected dtype to be Half or BFloat16, got Float")},
      {"autocast_to_integers", [] { const autocast guard(c10::kCPU, at::kInt); },
       error<c10::ValueError>("^autocast: expected dtype to be Half or BFloat16, got Int")},
      {"autocast_on_meta", [] { const autocast guard(c10::kMeta, at::kHalf); },
       error<c10::ValueError>(
           "^autocast: expected device_type to be one that has autocast, got me")},
      {"a_half_function_outside_of_autocast",
       [] {
         const auto type = [](const Tensor& x) { return x.scalar_type(); };
         EXPECT_EQ(half_function(type)(floats()), at::kFloat);
       },
       right()},
      {"a_half_function_of_integers",
       [] {
         const auto model = open_model(OptLevel::O1);
         const auto type = [](const Tensor& x) { return x.scalar_type(); };
         EXPECT_EQ(half_function(type)(of_type(at::kLong)), at::kLong);
       },
       right()},
  };
}

class WrongUseOfOpsTest : public ::testing::TestWithParam<WrongUse> {};

TEST_P(WrongUseOfOpsTest, GetsItsOutcome) {
  check(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ops, WrongUseOfOpsTest, ::testing::ValuesIn(of_ops()), name_of);
INSTANTIATE_TEST_SUITE_P(Autocast, WrongUseOfOpsTest, ::testing::ValuesIn(of_autocast()), name_of);

}  // namespace
}  // namespace torchamp::wrong_use
