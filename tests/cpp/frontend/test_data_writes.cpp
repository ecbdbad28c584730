// Writes to the model that bypass PyTorch's version counters.
#include <sstream>

#include "checkpoints.h"

namespace torchamp {
namespace {

class DataWritesTest : public DeviceTest {
 protected:
  static Training train(bool adopts) {
    return {device(), quiet(OptLevel::O2).adopt_data_writes(adopts)};
  }
  /// Writes one element of the model, bypassing its version counter.
  static void write(Training& training, float value) {
    training.net->last->weight.variable_data()[0][0].fill_(value);
  }
  static Tensor master_of(Training& training) {
    return training.amped.model.amp()->value(training.net->last->weight);
  }
};

TEST_P(DataWritesTest, AreSavedWithTheMastersOfWhatTheyDoNotChange) {
  Training training = train(false), loaded = train(false);
  training.step();
  Tensor expected = master_of(training).clone();
  write(training, 0.5f);
  expected[0][0] = 0.5f;
  const File file;
  save(training.amped, file.path());
  load(loaded.amped, file.path());
  EXPECT_TRUE(same_bits(master_of(loaded), expected));
  const auto expect_saved = [&](const auto& saved) {
    std::stringstream archive;
    torch::save(saved, archive);
    Net plain = make_net(device(), 9);
    torch::load(plain, archive, device());
    EXPECT_TRUE(same_bits(plain->last->weight.detach(), expected));
  };
  expect_saved(training.net);
  expect_saved(training.amped.model);
}

TEST_P(DataWritesTest, ToMastersStandWhereTheModelIsUnwritten) {
  Training training = train(true);
  training.step();
  for (const Tensor& master : training.optimizer().master_params()) {
    master.variable_data().fill_(0.3);
  }
  write(training, 0.5f);
  Tensor expected = training.net->last->weight.detach().to(at::kFloat);
  training.own.param_groups()[0].options().set_lr(0.0);
  training.step();
  EXPECT_TRUE(same_bits(master_of(training), expected)) << "both were written";
  const Tensor other = training.amped.model.amp()->value(training.net->last->bias);
  EXPECT_TRUE(same_bits(other, at::full_like(other, 0.3)));
}

TORCHAMP_ON_EACH_DEVICE(DataWritesTest);

}  // namespace
}  // namespace torchamp
