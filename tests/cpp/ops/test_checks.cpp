// Error messages of the ops for invalid arguments, after which nothing has changed.
#include <ATen/ops/empty.h>
#include <torchamp/ops.h>

#include <functional>

#include "device.h"
#include "errors.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::Tensor;
using List = std::vector<Tensor>;

/// Two lists that every op accepts; each test makes something invalid.
class ChecksTest : public DeviceTest {
 protected:
  static Tensor make(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return Random(13).normal(sizes, at::kFloat, device()).to(dtype);
  }
  static Tensor scalar(at::ScalarType dtype = at::kFloat) { return scalar_of(1, dtype, device()); }

  List first_ = {make({2, 3}), make({4})};
  List second_ = {make({2, 3}), make({4})};
  List third_ = {make({2, 3}), make({4})};
  Tensor found_inf_ = scalar_of(0, at::kFloat, device());
  Tensor scale_ = scalar(), growth_ = scalar(at::kInt);
};

/// `call` throws `message`, in an Error, and changes no bit and no version of `watched`.
template <class Error = c10::Error>
void expect_refused(const std::string& message, const List& watched,
                    const std::function<void()>& call) {
  const List before = clones(watched);
  std::vector<int64_t> versions;
  for (const Tensor& tensor : watched) versions.push_back(tensor._version());
  EXPECT_EQ(message_of<Error>(call), message);
  for (size_t i = 0; i < watched.size(); ++i) {
    EXPECT_TRUE(same_bits(watched[i], before[i])) << message;
    EXPECT_EQ(watched[i]._version(), versions[i]) << message;
  }
}

TEST_P(ChecksTest, ListsOfDifferentLengths) {
  const List shorter = {second_[0]};
  expect_refused("scale: expected outputs to have as many tensors as inputs, 2, got 1", shorter,
                 [&] { ops::scale(first_, shorter, 2, found_inf_); });
  expect_refused("unscale: expected master_grads to have as many tensors as scaled_grads, 2, got 1",
                 shorter, [&] { ops::unscale(first_, shorter, scalar(), found_inf_); });
  expect_refused("axpby: expected y to have as many tensors as x, 2, got 1", third_,
                 [&] { ops::axpby(1, first_, 1, shorter, third_, found_inf_); });
  expect_refused("axpby: expected outputs to have as many tensors as x, 2, got 1", shorter,
                 [&] { ops::axpby(1, first_, 1, second_, shorter, found_inf_); });
  expect_refused(
      "copy_cast: expected model_params to have as many tensors as master_params, 2, got 1",
      shorter, [&] { ops::copy_cast(first_, shorter); });
}

TEST_P(ChecksTest, TensorsOfDifferentSizes) {
  second_[1] = make({2, 2});
  expect_refused("scale: expected outputs[1] to have the sizes of inputs[1], [4], got [2, 2]",
                 second_, [&] { ops::scale(first_, second_, 2, found_inf_); });
  expect_refused(
      "unscale: expected master_grads[1] to have the sizes of scaled_grads[1], [4], got [2, 2]",
      second_, [&] { ops::unscale(first_, second_, scalar(), found_inf_); });
  expect_refused("axpby: expected y[1] to have the sizes of x[1], [4], got [2, 2]", third_,
                 [&] { ops::axpby(1, first_, 1, second_, third_, found_inf_); });
  expect_refused(
      "copy_cast: expected model_params[1] to have the sizes of master_params[1], [4], got [2, 2]",
      second_, [&] { ops::copy_cast(first_, second_); });
}

TEST_P(ChecksTest, TensorsThatAreNotFloating) {
  second_[1] = scalar_of(0, at::kLong, device()).expand({4}).contiguous();
  expect_refused<c10::TypeError>(
      "scale: expected outputs[1] to be float16, bfloat16, float32 or float64, got Long", second_,
      [&] { ops::scale(first_, second_, 2, found_inf_); });
  expect_refused<c10::TypeError>(
      "check: expected tensors[1] to be float16, bfloat16, float32 or float64, got Long",
      {found_inf_}, [&] { ops::check(second_, found_inf_); });
  expect_refused<c10::TypeError>(
      "l2norm: expected tensors[1] to be float16, bfloat16, float32 or float64, got Long", {},
      [&] { ops::l2norm(second_); });
}

TEST_P(ChecksTest, SparseTensors) {
  first_[0] = first_[0].to_sparse();
  expect_refused<c10::TypeError>("unscale: expected scaled_grads[0] to be dense, got layout Sparse",
                                 second_,
                                 [&] { ops::unscale(first_, second_, scalar(), found_inf_); });
  expect_refused<c10::TypeError>("check_l2norm: expected tensors[0] to be dense, got layout Sparse",
                                 {found_inf_}, [&] { ops::check_l2norm(first_, found_inf_); });
}

TEST_P(ChecksTest, OutputsThatOverlapInputsInPart) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kDouble}) {
    const Tensor memory = make({8}, dtype);
    const List low = {make({6}), memory.slice(0, 0, 6)}, high = {make({6}), memory.slice(0, 2, 8)};
    const List watched = {memory, high[0]}, read = {make({6}), make({6})};
    const auto message = [](const char* op, const char* written, const char* input) {
      return std::string(op) + ": expected " + written + "[1] to be " + input +
             "[1] or to share no memory with it, got one that overlaps it in part";
    };
    expect_refused(message("scale", "outputs", "inputs"), watched,
                   [&] { ops::scale(low, high, 2, found_inf_); });
    expect_refused(message("unscale", "master_grads", "scaled_grads"), watched,
                   [&] { ops::unscale(low, high, scalar(), found_inf_); });
    expect_refused(message("axpby", "outputs", "x"), watched,
                   [&] { ops::axpby(1, low, 1, read, high, found_inf_); });
    expect_refused(message("axpby", "outputs", "y"), watched,
                   [&] { ops::axpby(1, read, 1, low, high, found_inf_); });
    expect_refused(message("copy_cast", "model_params", "master_params"), watched,
                   [&] { ops::copy_cast(low, high); });
    ops::axpby(1, low, 1, high, {make({6}, dtype), make({6}, dtype)}, found_inf_);
  }
}

TEST_P(ChecksTest, OutputsOfAnotherDtypeInTheMemoryOfTheInputs) {
  const Tensor wide = make({8}), low = wide.view(at::kHalf).slice(0, 0, 8);
  expect_refused(
      "copy_cast: expected model_params[0] to be master_params[0] or to share no memory with it, "
      "got one that overlaps it in part",
      {wide}, [&] { ops::copy_cast({wide}, {low}); });
}

TEST_P(ChecksTest, OutputsWhoseElementsShareMemory) {
  const List outputs = {make({4}), make({1}).expand({4})};
  expect_refused("scale: expected outputs[1] to have memory for each element, got strides [0]",
                 outputs, [&] {
                   ops::scale({make({4}), make({4})}, outputs, 2, found_inf_);
                 });
}

TEST_P(ChecksTest, TensorsOnAnotherDevice) {
  second_[1] = second_[1].to(at::kMeta);
  const std::string here = found_inf_.device().str();
  expect_refused("scale: expected outputs[1] to be on " + here + ", got meta", {second_[0]},
                 [&] { ops::scale(first_, second_, 2, found_inf_); });
  expect_refused("copy_cast: expected model_params[1] to be on " + here + ", got meta",
                 {second_[0]}, [&] { ops::copy_cast(first_, second_); });
  expect_refused("l2norm: expected tensors[1] to be on " + here + ", got meta", {},
                 [&] { ops::l2norm(second_); });
}

TEST_P(ChecksTest, FoundInfThatIsNoFloatScalar) {
  expect_refused<c10::TypeError>("check: expected found_inf to be a tensor, got none", {},
                                 [&] { ops::check(first_, Tensor()); });
  expect_refused<c10::TypeError>("check: expected found_inf to be Float, got Double", {},
                                 [&] { ops::check(first_, scalar(at::kDouble)); });
  expect_refused("check: expected found_inf to have one element, got sizes [2]", {}, [&] {
    ops::check(first_, tensor_of({0, 0}, at::kFloat, device()));
  });
}

TEST_P(ChecksTest, InvScaleThatIsNoFloatScalarHere) {
  const auto unscale_by = [&](const Tensor& inv_scale) {
    return [&, inv_scale] { ops::unscale(first_, second_, inv_scale, found_inf_); };
  };
  const std::string here = found_inf_.device().str();
  expect_refused<c10::TypeError>("unscale: expected inv_scale to be a tensor, got none", second_,
                                 unscale_by(Tensor()));
  expect_refused<c10::TypeError>("unscale: expected inv_scale to be Float, got Half", second_,
                                 unscale_by(scalar(at::kHalf)));
  expect_refused("unscale: expected inv_scale to have one element, got sizes [2]", second_,
                 unscale_by(tensor_of({1, 1}, at::kFloat, device())));
  expect_refused("unscale: expected inv_scale to be on " + here + ", got meta", second_,
                 unscale_by(scalar().to(at::kMeta)));
}

TEST_P(ChecksTest, FoundInfPerTensorOfTheWrongKind) {
  expect_refused<c10::TypeError>("check: expected found_inf_per_tensor to be a tensor, got none",
                                 {found_inf_}, [&] { ops::check(first_, found_inf_, Tensor()); });
  expect_refused<c10::TypeError>(
      "check: expected found_inf_per_tensor to be contiguous Byte, got Float", {found_inf_}, [&] {
        ops::check(first_, found_inf_, tensor_of({0, 0}));
      });
  expect_refused("check: expected found_inf_per_tensor to have one element per tensor, 2, got 3",
                 {found_inf_}, [&] { ops::check(first_, found_inf_, clear_flags(3, device())); });
  expect_refused(
      "check: expected found_inf_per_tensor to be on " + found_inf_.device().str() + ", got meta",
      {found_inf_}, [&] { ops::check(first_, found_inf_, clear_flags(2, at::kMeta)); });
}

TEST_P(ChecksTest, StateOfAScaleThatIsOfTheWrongKind) {
  expect_refused<c10::TypeError>("update_scale: expected loss_scale to be a tensor, got none", {},
                                 [&] { ops::update_scale(Tensor(), growth_, found_inf_); });
  expect_refused<c10::TypeError>(
      "update_scale: expected loss_scale to be Float, got Half", {},
      [&] { ops::update_scale(scalar(at::kHalf), growth_, found_inf_); });
  expect_refused<c10::TypeError>("update_scale: expected growth_tracker to be Int, got Long",
                                 {scale_},
                                 [&] { ops::update_scale(scale_, scalar(at::kLong), found_inf_); });
}

/// Of the ops that return tensors, so that nothing else can have been written.
TEST_P(ChecksTest, Float8) {
  constexpr auto kDtype = at::kFloat8_e4m3fn;
  const List matrices = {make({2, 3}), make({4, 1})};
  const Tensor scales = make({2});
  const auto cast = [&](const List& tensors, const Tensor& by) {
    return [=] { ops::float8_cast(tensors, by, kDtype); };
  };
  expect_refused<c10::TypeError>(
      "float8_scales: expected dtype to be float8_e4m3fn or float8_e5m2, got Half", {},
      [&] { ops::float8_scales(matrices, at::kHalf); });
  expect_refused<c10::TypeError>(
      "float8_cast: expected dtype to be float8_e4m3fn or float8_e5m2, got Byte", {},
      [&] { ops::float8_cast(matrices, scales, at::kByte); });
  const List wide = {matrices[0], make({4, 1}, at::kDouble)};
  const std::string got = ": expected tensors[1] to be float16, bfloat16 or float32, got Double";
  expect_refused<c10::TypeError>("float8_scales" + got, {},
                                 [&] { ops::float8_scales(wide, kDtype); });
  expect_refused<c10::TypeError>("float8_cast" + got, {}, cast(wide, scales));
  expect_refused<c10::TypeError>("float8_cast: expected tensors[1] to be a tensor, got none", {},
                                 cast({matrices[0], Tensor()}, scales));
  expect_refused<c10::TypeError>("float8_cast: expected tensors[0] to be dense, got layout Sparse",
                                 {}, cast({matrices[0].to_sparse(), matrices[1]}, scales));
  expect_refused("float8_cast: expected tensors[1] to have two dimensions, got sizes [4]", {},
                 cast({matrices[0], make({4})}, scales));
  expect_refused<c10::TypeError>("float8_cast: expected scales to be a tensor, got none", {},
                                 cast(matrices, Tensor()));
  expect_refused("float8_cast: expected scales to have one element per tensor, 2, got 3", {},
                 cast(matrices, make({3})));
  expect_refused<c10::TypeError>("float8_cast: expected scales to be contiguous Float, got Half",
                                 {}, cast(matrices, make({2}, at::kHalf)));
  expect_refused("float8_cast: expected tensors[1] to be on " + device().str() + ", got meta", {},
                 cast({matrices[0], matrices[1].to(at::kMeta)}, scales));
}

TEST_P(ChecksTest, TensorsWithoutMemory) {
  const Tensor freed = make({4});
  freed.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, freed.device()));
  const std::string got = " to have memory of its own, got one whose storage is empty";
  const List odd = {first_[0], freed};
  expect_refused("scale: expected inputs[1]" + got, second_,
                 [&] { ops::scale(odd, second_, 2, found_inf_); });
  expect_refused("unscale: expected master_grads[1]" + got, {second_[0]},
                 [&] { ops::unscale(second_, odd, scalar(), found_inf_); });
  expect_refused("check: expected tensors[1]" + got, {found_inf_},
                 [&] { ops::check(odd, found_inf_); });
  expect_refused("l2norm: expected tensors[0]" + got, {}, [&] { ops::l2norm({freed}); });
  expect_refused("copy_cast: expected model_params[1]" + got, first_,
                 [&] { ops::copy_cast(first_, odd); });
}

TORCHAMP_ON_EACH_DEVICE(ChecksTest);

/// Meta tensors have shapes and no values: ops pass them through.
TEST(Meta, OpsPassShapesThrough) {
  const List meta = {at::empty({2, 3}, at::TensorOptions().device(at::kMeta))};
  const Tensor scalar = at::empty({}, at::TensorOptions().device(at::kMeta));
  ops::scale(meta, meta, 2, scalar);
  ops::unscale(meta, meta, scalar, scalar);
  ops::axpby(1, meta, 1, meta, meta, scalar);
  ops::copy_cast(meta, meta);
  ops::check(meta, scalar);
  const auto [norm, norms] = ops::l2norm(meta, true);
  EXPECT_EQ(norm.sizes(), at::IntArrayRef{});
  EXPECT_EQ(norms.sizes(), (at::IntArrayRef{1}));
  EXPECT_TRUE(norm.is_meta());
  const Tensor scales = ops::float8_scales(meta, at::kFloat8_e5m2);
  const auto [plain, transposed] = ops::float8_cast(meta, scales, at::kFloat8_e5m2);
  EXPECT_EQ(plain[0].sizes(), (at::IntArrayRef{2, 3}));
  EXPECT_EQ(transposed[0].sizes(), (at::IntArrayRef{3, 16}));
  EXPECT_EQ(transposed[0].scalar_type(), at::kFloat8_e5m2);
  EXPECT_TRUE(scales.is_meta() && transposed[0].is_meta());
}

}  // namespace
}  // namespace torchamp
