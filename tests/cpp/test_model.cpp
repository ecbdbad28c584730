#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/utils/rnn.h>

#include "net.h"
#include "tensors.h"

namespace elsewhere {

struct Output {
  at::Tensor logits;
  std::map<std::string, at::Tensor> more;
  int64_t calls = 0;
};

inline auto amp_members(Output& output) {
  return std::tie(output.logits, output.more);
}

/// State that a program keeps between calls; not copyable.
struct Journal {
  Journal() = default;
  Journal(const Journal&) = delete;
  int64_t calls = 0;
};

/// Several inputs: one is written, one has a default, one is optional.
struct MixerImpl : torch::nn::Module {
  Output forward(const at::Tensor& x, Journal& journal,
                 const std::optional<at::Tensor>& mask = std::nullopt, double factor = 2.0) {
    const at::Tensor logits = weight * x * factor;
    return {mask ? logits * *mask : logits, {{"weight", weight}}, ++journal.calls};
  }

  at::Tensor weight = register_parameter("weight", torchamp::scalar_of(2));
};
TORCH_MODULE(Mixer);

/// Modules in a list, stepped through. Without an activation, so that every weight gets a grad.
struct TowerImpl : torch::nn::Cloneable<TowerImpl> {
  TowerImpl() { reset(); }
  void reset() override {
    layers = register_module(
        "layers", torch::nn::ModuleList(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2)));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<torch::nn::Linear>()->forward(x);
    return x;
  }

  torch::nn::ModuleList layers{nullptr};
};
TORCH_MODULE(Tower);

}  // namespace elsewhere

namespace torchamp {
namespace {

using at::Tensor;
using States = std::tuple<Tensor, std::tuple<Tensor, Tensor>>;

class ModelTest : public DeviceTest {
 protected:
  template <class M>
  static M here(M module) {
    module->to(device());
    return module;
  }
  template <class M>
  static Model<M> at_o2(M module) {
    return initialize(here(std::move(module)), quiet(OptLevel::O2));
  }
  static Tensor input(std::vector<int64_t> sizes) {
    return Random(80).normal(sizes, at::kFloat, device());
  }
};

TEST_P(ModelTest, CastsWhatHoldsTensorsAndPassesTheRestAsItIs) {
  auto model = at_o2(elsewhere::Mixer());
  elsewhere::Journal journal;
  const Tensor x = scalar_of(1.5, at::kFloat, device());
  const elsewhere::Output output = model(x, journal);
  EXPECT_TRUE(same_bits(output.logits, scalar_of(6, at::kFloat, device())));
  EXPECT_EQ(output.more.at("weight").scalar_type(), at::kFloat);
  EXPECT_EQ(model(x, journal, std::make_optional(x), 1.0).logits.item<float>(), 4.5f);
  EXPECT_EQ(journal.calls, 2);
  EXPECT_EQ(x.scalar_type(), at::kFloat);
  EXPECT_EQ(model->weight.scalar_type(), at::kHalf);
}

/// Functions besides forward.
struct CoderImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return decode(encode(x), 1.0); }
  Tensor encode(const Tensor& x) { return linear(x); }
  Tensor decode(const Tensor& z, double factor) const { return z.matmul(linear->weight) * factor; }
  void look_at(const Tensor& x) { seen = x.scalar_type(); }

  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  at::ScalarType seen = at::kByte;
};
TORCH_MODULE(Coder);

TEST_P(ModelTest, CallsOtherFunctionsLikeForward) {
  const auto model = at_o2(Coder());
  const Tensor x = input({3, 4});
  const Tensor z = model.call(&CoderImpl::encode, x);
  EXPECT_EQ(z.scalar_type(), at::kFloat);
  const Tensor decoded = model.call(&CoderImpl::decode, z, 1.0);
  EXPECT_EQ(decoded.scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(decoded, model(x)));
  model.call([](CoderImpl& coder, const Tensor& y) { coder.look_at(y); }, x);
  EXPECT_EQ(model->seen, at::kHalf);
}

TEST_P(ModelTest, MayBeASharedPointer) {
  auto model = at_o2(std::make_shared<elsewhere::TowerImpl>());
  EXPECT_EQ(model(input({3, 4})).scalar_type(), at::kFloat);
  EXPECT_EQ(model->layers->ptr(0)->as<torch::nn::Linear>()->weight.scalar_type(), at::kHalf);
}

TEST_P(ModelTest, MayBeASequentialWhoseResultIsAskedFor) {
  auto model = at_o2(torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::LSTM(4, 3)));
  const auto [output, state] = model.forward<States>(input({5, 2, 4}));
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_EQ(std::get<1>(state).scalar_type(), at::kFloat);
  auto linear = at_o2(torch::nn::Sequential(torch::nn::Linear(4, 4)));
  EXPECT_EQ(linear(input({5, 4})).scalar_type(), at::kFloat);
}

TEST_P(ModelTest, MayBeAnAnyModule) {
  torch::nn::AnyModule any(elsewhere::Tower{});
  any.ptr()->to(device());
  auto model = initialize(any, quiet(OptLevel::O2));
  EXPECT_EQ(model(input({3, 4})).scalar_type(), at::kFloat);
  EXPECT_EQ(dtypes_of(model->ptr()->parameters()), "Half Half Half Half");
  torch::nn::AnyModule rnn(torch::nn::GRU(4, 3));
  rnn.ptr()->to(device());
  auto recurrent = initialize(rnn, quiet(OptLevel::O2));
  const auto [output, state] =
      recurrent.forward<std::tuple<Tensor, Tensor>>(input({5, 2, 4}), Tensor());
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_EQ(state.scalar_type(), at::kFloat);
}

TEST_P(ModelTest, RecurrentModulesTakeAndGiveTheirState) {
  auto lstm = at_o2(torch::nn::LSTM(4, 3));
  const auto [first, state] = lstm(input({5, 2, 4}));
  const auto [second, next] = lstm(input({5, 2, 4}), std::make_optional(state));
  EXPECT_EQ(second.scalar_type(), at::kFloat);
  EXPECT_FALSE(same_bits(first, second));
  auto gru = at_o2(torch::nn::GRU(4, 3));
  EXPECT_EQ(std::get<1>(gru(input({5, 2, 4}))).scalar_type(), at::kFloat);
}

/// An LSTM whose forward takes and returns packed sequences.
struct PackedImpl : torch::nn::Module {
  torch::nn::utils::rnn::PackedSequence forward(
      const torch::nn::utils::rnn::PackedSequence& sequence) {
    seen = sequence.data().scalar_type();
    return std::get<0>(lstm->forward_with_packed_input(sequence));
  }
  torch::nn::LSTM lstm = register_module("lstm", torch::nn::LSTM(4, 3));
  at::ScalarType seen = at::kByte;
};

TEST_P(ModelTest, PackedSequencesGoInAndOut) {
  auto model = at_o2(std::make_shared<PackedImpl>());
  const auto packed = torch::nn::utils::rnn::pack_padded_sequence(
      input({5, 2, 4}), tensor_of({5, 3}, at::kLong), /*batch_first=*/false);
  EXPECT_EQ(model(packed).data().scalar_type(), at::kFloat);
  EXPECT_EQ(model->seen, at::kHalf);
}

TEST_P(ModelTest, ACloneIsAPlainModuleOfItsOwn) {
  auto model = at_o2(elsewhere::Tower());
  const auto clone = std::dynamic_pointer_cast<elsewhere::TowerImpl>(model->clone());
  EXPECT_EQ(dtypes_of(clone->parameters()), "Half Half Half Half");
  const Tensor x = input({3, 4});
  const Tensor expected = model(x);
  {
    const torch::NoGradGuard no_grad;
    model->parameters()[0].zero_();
  }
  EXPECT_TRUE(same_bits(clone->forward(x.to(at::kHalf)).to(at::kFloat), expected));
}

TEST_P(ModelTest, ACloneMayBeInitializedOnceItIsFloat32) {
  auto tower = at_o2(elsewhere::Tower());
  const auto copy = std::dynamic_pointer_cast<elsewhere::TowerImpl>(tower->clone());
  EXPECT_THROW(initialize(copy, quiet(OptLevel::O2)), c10::Error);
  copy->to(at::kFloat);
  torch::optim::SGD sgd(copy->parameters(), 0.1);
  auto amped = initialize(copy, sgd, quiet(OptLevel::O2).loss_scale(128.0));
  const auto before = clones(tower->parameters());
  { scale_loss(amped.model(input({3, 4})).sum(), amped.optimizer).backward(); }
  EXPECT_TRUE(amped.optimizer.step());
  EXPECT_TRUE(same_bits(tower->parameters(), before));
  EXPECT_FALSE(same_bits(copy->parameters(), before));
}

TORCHAMP_ON_EACH_DEVICE(ModelTest);

}  // namespace
}  // namespace torchamp
