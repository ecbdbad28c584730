// core::Param: the values of a model's tensor and of its master.
#include <ATen/core/grad_mode.h>

#include "core/borrow.h"
#include "core/masters.h"
#include "core/param.h"
#include "device.h"
#include "errors.h"
#include "tensors.h"

namespace torchamp::core {
namespace {

using at::Tensor;

/// A float16 parameter with a master that holds more, and a float32 one without.
class ParamTest : public DeviceTest {
 protected:
  static constexpr double kFine = 1.0 + 0x1p-20;

  static Tensor values(double first, at::ScalarType dtype = at::kFloat) {
    return tensor_of({first, 2, -3}, dtype, device());
  }
  /// Casts it as initialize does.
  static std::shared_ptr<Param> make_half(const Tensor& tensor) {
    const Tensor master = make_master(tensor);
    tensor.set_data(tensor.variable_data().to(at::kHalf));
    return make_param(tensor, master);
  }
  const Tensor& model() const { return half_->model; }
  const Tensor& master() const { return half_->master; }
  void write_model(const Tensor& value) const { model().detach().copy_(value); }
  void write_master(const Tensor& value) const { master().detach().copy_(value); }
  void refresh() const { core::refresh(both_); }

  const std::shared_ptr<Param> half_ = make_half(values(kFine).set_requires_grad(true));
  const Tensor wide_ = values(kFine).set_requires_grad(true);
  const ParamList both_ = {half_, make_param(wide_, wide_)};
};

TEST_P(ParamTest, AMasterTakesOverFloat32MemoryAndCopiesAnyOther) {
  const Tensor wide = values(1), half = values(1, at::kHalf), strided = wide.expand({2, 3});
  EXPECT_EQ(make_master(wide).data_ptr(), wide.data_ptr());
  EXPECT_TRUE(same_bits(make_master(half), wide));
  EXPECT_TRUE(same_bits(make_master(strided), strided));
  EXPECT_NE(make_master(strided).data_ptr(), strided.data_ptr());
}

TEST_P(ParamTest, IsFoundByBothOfItsTensorsAsLongAsItLives) {
  EXPECT_EQ(param_of(model()), half_);
  EXPECT_EQ(param_of(master()), half_);
  EXPECT_EQ(param_of(wide_), both_[1]);
  EXPECT_TRUE(half_->has_master());
  EXPECT_FALSE(both_[1]->has_master());
  const Tensor other = values(7);
  make_param(other, other);
  EXPECT_EQ(param_of(other), nullptr);
}

TEST_P(ParamTest, IsOneForATensorWhoeverAsks) {
  EXPECT_EQ(make_param(model(), values(7)), half_);
  EXPECT_EQ(make_param(wide_, wide_), both_[1]);
}

TEST_P(ParamTest, RefusesAMasterOfOtherSizes) {
  EXPECT_EQ(message_of([] { make_param(values(1), scalar_of(1)); }),
            "amp: expected a master of sizes [3], got []");
}

TEST_P(ParamTest, NothingIsWrittenWithoutAWrite) {
  const auto versions = [&] { return std::pair(model()._version(), master()._version()); };
  const auto before = versions();
  refresh();
  publish_masters(both_);
  EXPECT_EQ(versions(), before);
}

TEST_P(ParamTest, TheMasterFollowsAModelThatIsWritten) {
  write_model(values(9));
  EXPECT_TRUE(same_bits(half_->value(), values(9)));
  refresh();
  EXPECT_TRUE(same_bits(master(), values(9)));
}

TEST_P(ParamTest, AWriteLeavesTheMastersOfWhatItDoesNotChange) {
  Tensor expected = values(kFine);
  expected[1] = 9;
  model().detach()[1] = 9;
  refresh();
  EXPECT_TRUE(same_bits(master(), expected));
}

TEST_P(ParamTest, TheMasterFollowsAModelOfNewMemory) {
  model().set_data(values(9, at::kHalf));
  refresh();
  EXPECT_TRUE(same_bits(master(), values(9)));
}

TEST_P(ParamTest, TheModelFollowsAMasterThatIsWritten) {
  write_master(values(4.0001));
  EXPECT_TRUE(half_->is_master_ahead());
  publish_masters(both_);
  EXPECT_FALSE(half_->is_master_ahead());
  EXPECT_TRUE(same_bits(model(), values(4.0001, at::kHalf)));
  write_master(values(5.0001));
  refresh();
  EXPECT_TRUE(same_bits(model(), values(5.0001, at::kHalf)));
  EXPECT_TRUE(same_bits(half_->value(), values(5.0001)));
}

TEST_P(ParamTest, WhereBothAreWrittenTheModelWins) {
  write_master(values(4));
  write_model(values(9));
  publish_masters(both_);
  EXPECT_TRUE(same_bits(model(), values(9, at::kHalf)));
  refresh();
  EXPECT_TRUE(same_bits(half_->value(), values(9)));
}

TEST_P(ParamTest, CopyToModelRoundsAndIsNoWriteFromOutside) {
  write_master(values(4.0001));
  EXPECT_FALSE(half_->is_rounded_master());
  copy_to_model(both_);
  EXPECT_TRUE(half_->is_rounded_master());
  refresh();
  EXPECT_TRUE(same_bits(master(), values(4.0001)));
}

TEST_P(ParamTest, DataWritesShowInTheValueAndAreAdoptedWhereAsked) {
  Tensor expected = values(kFine);
  expected[1] = 9;
  model().variable_data()[1] = 9;
  refresh();
  EXPECT_TRUE(same_bits(master(), values(kFine))) << "no counter has counted it";
  EXPECT_TRUE(same_bits(half_->value(), expected));
  half_->adopt_data_writes();
  EXPECT_TRUE(same_bits(master(), expected));
}

TEST_P(ParamTest, WatchedDataWritesToTheMasterStandUntilTheModelIsWritten) {
  half_->watch_data_writes();
  const Tensor data = half_->master.variable_data();
  data.copy_(values(5.0001));
  half_->adopt_data_writes();
  EXPECT_TRUE(same_bits(half_->value(), values(5.0001)));
  copy_to_model(both_);
  data.copy_(values(6.0001));
  model().variable_data()[1] = 9;
  Tensor expected = values(5.0001).to(at::kHalf).to(at::kFloat);
  expected[1] = 9;
  EXPECT_TRUE(same_bits(half_->value(), expected)) << "both were written";
  half_->adopt_data_writes();
  EXPECT_TRUE(same_bits(master(), expected));
}

TEST_P(ParamTest, OverwriteMasterTakesTheModelAsItIs) {
  model().variable_data().copy_(values(9));
  half_->overwrite_master();
  EXPECT_TRUE(same_bits(master(), values(9)));
  half_->overwrite_master();
  both_[1]->overwrite_master();
  EXPECT_TRUE(same_bits(wide_, values(kFine)));
}

TEST_P(ParamTest, MarkSyncedAcceptsWhatWasWritten) {
  write_model(values(9));
  half_->mark_synced();
  refresh();
  EXPECT_TRUE(same_bits(master(), values(kFine)));
}

TEST_P(ParamTest, SetMasterWritesTheMasterAlone) {
  half_->set_master(values(7, at::kDouble));
  EXPECT_TRUE(same_bits(master(), values(7)));
  EXPECT_TRUE(same_bits(model(), values(1, at::kHalf)));
  both_[1]->set_master(values(7));
  EXPECT_TRUE(same_bits(wide_, values(kFine)));
}

TEST_P(ParamTest, SetMasterWhereHeldTakesWhatTheModelHoldsRounded) {
  Tensor other = values(1.0 + 0x1p-19), expected = other.clone();
  other[1] = 9;
  half_->set_master_where_held(other);
  EXPECT_TRUE(same_bits(master(), expected));
  EXPECT_FALSE(half_->is_master_ahead());
}

TEST_P(ParamTest, GivesItsMasterBack) {
  Masters masters;
  const Tensor model = values(1, at::kHalf), master = values(kFine);
  const auto param = masters.param_of(model, master);
  model.mutable_grad() = values(1, at::kHalf);
  masters.prepare_release();
  masters.give_back();
  EXPECT_TRUE(same_bits(model, values(kFine)));
  EXPECT_EQ(model.data_ptr(), master.data_ptr());
  EXPECT_FALSE(model.grad().defined());
}

/// By any function that looks at the model.
void expect_refused(const std::shared_ptr<Param>& param, const std::string& held,
                    const std::string& got) {
  const std::string expected =
      "amp: expected a model parameter of sizes [3] to hold " + held +
      " as initialize left it, got " + got +
      ". model.half(), model.float() and, in C++, torch::load replace parameters without the "
      "optimizer's knowledge: change the type before initialize, and load checkpoints by amp's "
      "load, or into the model that initialize returned";
  EXPECT_EQ(message_of([&] { refresh({param}); }), expected);
  EXPECT_EQ(message_of([&] { param->check_dtype(); }), expected);
}

TEST_P(ParamTest, AnotherDtypeIsRefused) {
  model().set_data(values(1));
  expect_refused(half_, "Half", "Float");
  EXPECT_NE(message_of([&] { half_->overwrite_master(); }), "no error");
  EXPECT_TRUE(same_bits(master(), values(kFine)));
  wide_.set_data(values(1, at::kHalf));
  EXPECT_EQ(message_of([&] { refresh(); }).substr(0, 4), "amp:");
  EXPECT_EQ(message_of([&] { core::refresh({both_[1]}); }), "no error") << "it has no master";
}

/// torch::load of a float32 archive replaces the memory but not the dtype.
TEST_P(ParamTest, Float32MemoryUnderA16BitParameterIsRefused) {
  const Tensor alone = values(1, at::kBFloat16);
  const auto without_master = make_param(alone, alone);
  for (const Tensor& tensor : {model(), alone}) {
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(values(9).storage());
  }
  expect_refused(half_, "Half", "Float");
  expect_refused(without_master, "BFloat16", "Float");
  EXPECT_TRUE(same_bits(master(), values(kFine)));
}

TORCHAMP_ON_EACH_DEVICE(ParamTest);

}  // namespace
}  // namespace torchamp::core
