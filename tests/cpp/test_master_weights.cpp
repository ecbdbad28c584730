#include <torchamp/detail/masters.h>

#include "device.h"
#include "errors.h"
#include "oracle.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::Tensor;

constexpr float kScale = 1024;

/// Two float16 parameters with masters, and between them a float32 parameter without.
class MasterWeightsTest : public DeviceTest {
 protected:
  MasterWeightsTest() {
    for (const bool is_half : {true, false, true}) {
      const Tensor param = values(1.0 + 0x1p-20).set_requires_grad(true);
      masters_.track(param, is_half ? make_half(param) : Tensor());
    }
  }

  static Tensor values(double first, at::ScalarType dtype = at::kFloat) {
    return tensor_of({first, 2, -3}, dtype, device());
  }
  /// Casts `param` as initialize does; returns its master.
  static Tensor make_half(const Tensor& param) {
    const Tensor master = MasterWeights::make_master(param);
    Tensor(param).set_data(param.variable_data().to(at::kHalf));
    return master;
  }
  /// A grad as after a backward: 1024 times the grad, in the parameter's dtype.
  void give_grads(double first) {
    for (const Tensor& param : weights_.model_params()) {
      param.mutable_grad() = values(first).mul(1024).to(param.scalar_type());
    }
  }
  void backward(double first) {
    grads_.prepare_backward();
    give_grads(first);
    finish();
  }
  void finish() {
    found_inf_ = grads_.finish_backward(scalar_of(kScale, at::kFloat, device()), found_inf_);
  }
  bool found() const { return found_inf_.item<float>() != 0; }
  const Tensor& model(size_t i) const { return weights_.model_params()[i]; }
  const Tensor& master(size_t i) const { return weights_.master_params()[i]; }

  core::Masters masters_;
  MasterWeights& weights_ = masters_.weights;
  MasterGrads& grads_ = masters_.grads;
  Tensor found_inf_ = scalar_of(0, at::kFloat, device());
};

TEST_P(MasterWeightsTest, MastersKeepTheBitsThatFloat16Loses) {
  EXPECT_EQ(model(0).scalar_type(), at::kHalf);
  EXPECT_TRUE(same_bits(model(0), values(1, at::kHalf)));
  EXPECT_TRUE(same_bits(master(0), values(1.0 + 0x1p-20)));
  EXPECT_TRUE(master(0).requires_grad());
  EXPECT_TRUE(master(0).is_leaf());
}

TEST_P(MasterWeightsTest, AMasterTakesOverFloat32MemoryAndCopiesAnyOther) {
  const Tensor param = values(1);
  EXPECT_EQ(MasterWeights::make_master(param).data_ptr(), param.data_ptr());
  const Tensor half = values(1, at::kHalf), strided = values(1).expand({2, 3});
  EXPECT_TRUE(same_bits(MasterWeights::make_master(half), values(1)));
  EXPECT_TRUE(same_bits(MasterWeights::make_master(strided), strided));
  EXPECT_NE(MasterWeights::make_master(strided).data_ptr(), strided.data_ptr());
}

TEST_P(MasterWeightsTest, EachParameterIsTrackedOnce) {
  const Tensor other = values(7);
  EXPECT_TRUE(masters_.track(model(0), other).is_same(master(0)));
  EXPECT_EQ(weights_.model_params().size(), 3U);
  EXPECT_TRUE(weights_.master_of(model(2)).is_same(master(2)));
  EXPECT_TRUE(weights_.master_of(model(1)).is_same(model(1)));
  EXPECT_FALSE(weights_.master_of(other).defined());
}

TEST_P(MasterWeightsTest, HasMastersOnlyIfSomeAreSeparate) {
  EXPECT_TRUE(weights_.has_masters());
  MasterWeights none;
  none.track(values(1));
  EXPECT_FALSE(none.has_masters());
}

TEST_P(MasterWeightsTest, RefusesAMasterOfOtherSizes) {
  EXPECT_EQ(message_of([&] { masters_.track(values(1), scalar_of(1)); }),
            "MasterWeights::track: expected master to have sizes [3], got []");
  EXPECT_EQ(weights_.model_params().size(), 3U);
}

TEST_P(MasterWeightsTest, ABackwardFillsTheMastersGrads) {
  backward(5);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(master(i).grad(), values(5))) << i;
  EXPECT_FALSE(found());
  EXPECT_TRUE(grads_.nonfinite_params().empty());
}

TEST_P(MasterWeightsTest, BackwardsAddUp) {
  backward(5);
  const Tensor grad = master(0).grad();
  backward(0.25);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(master(i).grad(), tensor_of({5.25, 4, -6}, at::kFloat, device()))) << i;
  }
  EXPECT_TRUE(master(0).grad().is_same(grad)) << "added in place";
}

TEST_P(MasterWeightsTest, ABackwardStartsFromNoGradsInTheModel) {
  backward(5);
  grads_.prepare_backward();
  for (size_t i = 0; i < 3; ++i) EXPECT_FALSE(model(i).grad().defined()) << i;
}

TEST_P(MasterWeightsTest, AParameterThatGetsNoGradKeepsWhatItHad) {
  backward(5);
  grads_.prepare_backward();
  model(0).mutable_grad() = values(1024, at::kHalf);
  finish();
  EXPECT_EQ(master(0).grad()[0].item<float>(), 6);
  EXPECT_TRUE(same_bits(master(1).grad(), values(5)));
  EXPECT_TRUE(same_bits(master(2).grad(), values(5)));
}

TEST_P(MasterWeightsTest, CancelPutsTheGradsBack) {
  backward(5);
  std::vector<Tensor> before;
  for (size_t i = 0; i < 3; ++i) before.push_back(model(i).grad());
  grads_.prepare_backward();
  give_grads(7);
  grads_.cancel_backward();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(model(i).grad().is_same(before[i])) << i;
    EXPECT_TRUE(same_bits(master(i).grad(), values(5))) << i;
  }
}

TEST_P(MasterWeightsTest, CancelWithoutABackwardDoesNothing) {
  give_grads(5);
  grads_.cancel_backward();
  EXPECT_TRUE(model(0).grad().defined());
}

TEST_P(MasterWeightsTest, AnOverflowNamesItsParameter) {
  for (int64_t bad = 0; bad < 3; ++bad) {
    found_inf_.zero_();
    grads_.drop_master_grads();
    model(1).mutable_grad().reset();
    grads_.prepare_backward();
    give_grads(5);
    model(bad).grad()[1].fill_(NAN);
    finish();
    EXPECT_TRUE(found());
    EXPECT_EQ(grads_.nonfinite_params(), (std::vector<int64_t>{bad}));
  }
}

TEST_P(MasterWeightsTest, NothingIsFoundWithoutABackward) {
  EXPECT_TRUE(grads_.nonfinite_params().empty());
}

TEST_P(MasterWeightsTest, RefuseLeavesWhatShowsAZeroing) {
  backward(5);
  grads_.refuse(weights_.master_params());
  for (size_t i = 0; i < 3; ++i) EXPECT_FALSE(master(i).grad().defined()) << i;
  EXPECT_FALSE(grads_.drop_zeroed());
  for (const size_t i : {0, 2}) model(i).mutable_grad().reset();
  EXPECT_TRUE(grads_.drop_zeroed());
}

TEST_P(MasterWeightsTest, DropMasterGradsLeavesAParametersOwn) {
  backward(5);
  grads_.drop_master_grads();
  EXPECT_FALSE(master(0).grad().defined());
  EXPECT_TRUE(same_bits(master(1).grad(), values(5)));
}

TEST_P(MasterWeightsTest, ZeroModelGradsZeroesOrDrops) {
  backward(5);
  const TensorSet stepped{master(0).unsafeGetTensorImpl()};
  grads_.zero_model_grads(/*set_to_none=*/false, stepped);
  EXPECT_TRUE(same_bits(model(0).grad(), values(0, at::kHalf).zero_()));
  grads_.zero_model_grads(/*set_to_none=*/true, stepped);
  EXPECT_FALSE(model(0).grad().defined());
  EXPECT_TRUE(same_bits(master(0).grad(), values(5))) << "the optimizer sees to these";
}

TEST_P(MasterWeightsTest, NothingChangesWithoutWrites) {
  const auto version = master(0)._version();
  EXPECT_FALSE(weights_.refresh());
  EXPECT_EQ(master(0)._version(), version);
  EXPECT_TRUE(same_bits(master(0), values(1.0 + 0x1p-20)));
}

TEST_P(MasterWeightsTest, AModelParameterThatWasWrittenBecomesItsMaster) {
  model(0).variable_data();
  Tensor(model(0)).detach().copy_(values(9));
  EXPECT_FALSE(weights_.refresh());
  EXPECT_TRUE(same_bits(master(0), values(9)));
  EXPECT_TRUE(same_bits(master(2), values(1.0 + 0x1p-20)));
}

TEST_P(MasterWeightsTest, AWriteLeavesTheMastersOfWhatItDoesNotChange) {
  const Tensor expected = master(0).detach().clone();
  expected[0] = 9;
  model(0).detach()[0] = 9;
  weights_.refresh();
  EXPECT_TRUE(same_bits(master(0), expected));
}

TEST_P(MasterWeightsTest, AdoptsAnothersMasterWhereTheModelHoldsIt) {
  const Tensor other = values(1.0 + 0x1p-19);
  other[0] = 9;
  Tensor expected = values(1.0 + 0x1p-19);
  expected[0] = master(0).detach()[0];
  weights_.adopt_where_held(model(0), other);
  EXPECT_TRUE(same_bits(master(0), expected));
  EXPECT_FALSE(weights_.refresh());
}

TEST_P(MasterWeightsTest, AModelParameterWithNewMemoryBecomesItsMaster) {
  Tensor(model(0)).set_data(values(9, at::kHalf));
  weights_.refresh();
  EXPECT_TRUE(same_bits(master(0), values(9)));
}

TEST_P(MasterWeightsTest, AMasterThatWasSteppedReachesTheModel) {
  master(0).detach().copy_(values(4.0001));
  EXPECT_TRUE(weights_.refresh());
  EXPECT_TRUE(same_bits(model(0), values(4.0001, at::kHalf)));
  EXPECT_TRUE(same_bits(master(0), values(4.0001)));
  EXPECT_FALSE(weights_.refresh());
}

TEST_P(MasterWeightsTest, WhereBothWereWrittenTheModelWins) {
  master(0).detach().copy_(values(4));
  model(0).detach().copy_(values(9));
  weights_.refresh();
  EXPECT_TRUE(same_bits(master(0), values(9)));
  EXPECT_TRUE(same_bits(model(0), values(9, at::kHalf)));
}

TEST_P(MasterWeightsTest, CopyToModelRoundsAndIsNoWriteFromOutside) {
  master(0).detach().copy_(values(4.0001));
  weights_.copy_to_model();
  EXPECT_TRUE(same_bits(model(0), values(4.0001, at::kHalf)));
  EXPECT_TRUE(weights_.is_rounded_master(model(0)));
  EXPECT_FALSE(weights_.refresh());
  EXPECT_TRUE(same_bits(master(0), values(4.0001)));
}

TEST_P(MasterWeightsTest, OnlyForceRefreshSeesWritesBehindTheCounters) {
  model(0).variable_data().copy_(values(9));
  EXPECT_FALSE(weights_.is_rounded_master(model(0)));
  weights_.refresh();
  EXPECT_TRUE(same_bits(master(0), values(1.0 + 0x1p-20)));
  weights_.force_refresh();
  EXPECT_TRUE(same_bits(master(0), values(9)));
}

TEST_P(MasterWeightsTest, MarkSyncedAcceptsWhatWasWritten) {
  model(0).detach().copy_(values(9));
  model(2).detach().copy_(values(9));
  weights_.mark_synced(model(0));
  weights_.refresh();
  EXPECT_TRUE(same_bits(master(0), values(1.0 + 0x1p-20)));
  EXPECT_TRUE(same_bits(master(2), values(9)));
}

const char* const kRemedy =
    ". torch::load, model.half() and model.float() replace parameters without the optimizer's "
    "knowledge: change the type before initialize, and load checkpoints with amp::load, or with "
    "torch::load into the model that initialize returned";

TEST_P(MasterWeightsTest, AParameterOfAnotherDtypeIsRefused) {
  Tensor(model(2)).set_data(values(1));
  const std::string message =
      "amp: expected model parameter 2 of the optimizer, of sizes [3], to hold Half as initialize "
      "left it, got Float";
  EXPECT_EQ(message_of([&] { weights_.refresh(); }), message + kRemedy);
  EXPECT_EQ(message_of([&] { weights_.force_refresh(); }), message + kRemedy);
  EXPECT_TRUE(same_bits(master(2), values(1.0 + 0x1p-20)));
}

/// torch::load of a float32 archive replaces the memory but not the dtype.
TEST_P(MasterWeightsTest, Float32MemoryUnderAFloat16ParameterIsRefused) {
  const Tensor& param = model(0);
  param.unsafeGetTensorImpl()->set_storage_keep_dtype(values(9).storage());
  EXPECT_EQ(message_of([&] { weights_.refresh(); }),
            std::string("amp: expected model parameter 0 of the optimizer, of sizes [3], to hold "
                        "Half as initialize left it, got Float") +
                kRemedy);
  EXPECT_TRUE(same_bits(master(0), values(1.0 + 0x1p-20)));
}

TORCHAMP_ON_EACH_DEVICE(MasterWeightsTest);

}  // namespace
}  // namespace torchamp
