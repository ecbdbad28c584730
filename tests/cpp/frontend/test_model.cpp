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

/// Memory that a program keeps between calls.
struct Memory {
  Tensor state;
  std::vector<Tensor> log;
  int64_t calls = 0;
};

inline auto amp_members(Memory& memory) {
  return std::tie(memory.state, memory.log);
}

/// Functions that write what they are called with.
struct WriterImpl : torch::nn::Module {
  Tensor forward(Tensor& x) { return x = linear(x); }
  Tensor add(const Tensor& x, Tensor& sum) {
    seen = sum.scalar_type();
    return sum.add_(x);
  }
  void remember(Memory& memory) {
    seen = memory.state.scalar_type();
    memory.state = linear(memory.state);
    memory.log.push_back(memory.state);
    memory.log.front().add_(1);
    ++memory.calls;
  }
  Tensor read(Tensor x) { return x.mul_(2); }

  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  at::ScalarType seen = at::kByte;
};
TORCH_MODULE(Writer);

TEST_P(ModelTest, WhatForwardAssignsComesBack) {
  auto model = at_o2(Writer());
  Tensor x = input({3, 4});
  const Tensor expected = model.call([](WriterImpl& net, Tensor y) { return net.linear(y); }, x);
  const Tensor y = model(x);
  EXPECT_EQ(x.scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(x, expected) && same_bits(y, expected));
}

TEST_P(ModelTest, WhatForwardWritesInPlaceComesBack) {
  auto model = at_o2(Writer());
  for (const bool infers : {false, true}) {
    const c10::InferenceMode inference(infers);
    Tensor sum = at::full({4}, 1.0, device());
    const Tensor same = sum;
    model.call(&WriterImpl::add, at::full({4}, 2.0, device()), sum);
    EXPECT_EQ(model->seen, at::kHalf);
    EXPECT_TRUE(sum.is_same(same));
    EXPECT_TRUE(same_bits(sum, at::full({4}, 3.0, device())));
  }
}

TEST_P(ModelTest, WhatForwardDoesNotWriteStaysAsItWas) {
  auto model = at_o2(Writer());
  Tensor x = at::full({4}, 1.0 + 0x1p-20, device());
  const Tensor same = x, before = x.clone();
  model.call([](WriterImpl&, Tensor& y) { return y + 1; }, x);
  EXPECT_TRUE(x.is_same(same) && same_bits(x, before));
  const Tensor constant = x;
  model.call(&WriterImpl::read, constant);
  EXPECT_TRUE(same_bits(constant, before)) << "a const argument";
}

TEST_P(ModelTest, WhatForwardWritesIntoPartsComesBack) {
  auto model = at_o2(Writer());
  Memory memory{input({3, 4}), {at::zeros({4}, device())}, 0};
  const Tensor first = memory.log.front();
  model.call(&WriterImpl::remember, memory);
  EXPECT_EQ(model->seen, at::kHalf);
  EXPECT_EQ(memory.calls, 1);
  EXPECT_EQ(dtypes_of({memory.state, memory.log.at(0), memory.log.at(1)}), "Float Float Float");
  EXPECT_TRUE(memory.log[0].is_same(first) && same_bits(first, at::ones({4}, device())));
  EXPECT_TRUE(same_bits(memory.log[1], memory.state));
}

TEST_P(ModelTest, CastGivesWhatOtherFunctionsOfTheModuleTake) {
  const auto model = at_o2(Coder());
  const Tensor x = input({3, 4});
  EXPECT_TRUE(
      same_bits(model->encode(model.cast(x)).to(at::kFloat), model.call(&CoderImpl::encode, x)));
  EXPECT_EQ(model.cast(std::vector<Tensor>{x}).front().scalar_type(), at::kHalf);
  const auto uncast = initialize(here(Coder()), quiet(OptLevel::O0));
  EXPECT_TRUE(uncast.cast(x).is_same(x));
}

TEST_P(ModelTest, MayBeAModuleByReference) {
  WriterImpl net;
  net.to(device());
  torch::optim::SGD sgd(net.parameters(), 0.5);
  const auto before = clones(net.parameters());
  auto [model, optimizer] = initialize(net, sgd, quiet(OptLevel::O2).loss_scale(128.0));
  EXPECT_EQ(&*model, &net);
  Tensor x = input({3, 4});
  { scale_loss(model(x).sum(), optimizer).backward(); }
  EXPECT_TRUE(optimizer.step());
  EXPECT_EQ(dtypes_of(net.parameters()), "Half Half");
  release(model);
  EXPECT_FALSE(same_bits(net.parameters(), before));
  WriterImpl alone;
  EXPECT_EQ(dtypes_of(initialize(alone, quiet(OptLevel::O2))->parameters()), "Half Half");
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
