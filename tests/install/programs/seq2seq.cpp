// A transformer for sequences: hand-written attention with masks, a batch in a struct, an optimizer
// each for encoder and decoder, and greedy decoding.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <cmath>

#include "run.h"

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kTokens = 12, kWidth = 16, kHeads = 2, kLength = 6, kPad = 0, kStart = 1;

struct Batch {
  torch::Tensor source, target, source_mask, target_mask;
};

struct AttentionImpl : nn::Module {
  torch::Tensor forward(torch::Tensor q, torch::Tensor kv, torch::Tensor mask) {
    const torch::Tensor k = heads(key(kv)), v = heads(value(kv));
    torch::Tensor scores = torch::matmul(heads(query(q)), k.transpose(-2, -1));
#ifdef WITH_TORCHAMP
    const double masked = -1e4;  // float16 has no 1e9
#else
    const double masked = -1e9;
#endif
    scores = (scores / std::sqrt(kWidth / kHeads)).masked_fill(mask == 0, masked);
    const torch::Tensor mixed = torch::matmul(torch::softmax(scores, -1), v);
    return out(mixed.transpose(1, 2).flatten(2));
  }
  static torch::Tensor heads(const torch::Tensor& x) {
    return x.view({x.size(0), x.size(1), kHeads, -1}).transpose(1, 2);
  }
  nn::Linear query = register_module("query", nn::Linear(kWidth, kWidth));
  nn::Linear key = register_module("key", nn::Linear(kWidth, kWidth));
  nn::Linear value = register_module("value", nn::Linear(kWidth, kWidth));
  nn::Linear out = register_module("out", nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Attention);

/// Embedded tokens with their positions.
struct EmbeddedImpl : nn::Module {
  EmbeddedImpl() {
    register_module("tokens", tokens);
    const torch::Tensor place = torch::arange(kLength).unsqueeze(1);
    const torch::Tensor angles = place * torch::exp(torch::arange(0, kWidth, 2) * -0.5);
    positions = torch::stack({torch::sin(angles), torch::cos(angles)}, 2).flatten(1);
    register_buffer("positions", positions);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return tokens(ids) * std::sqrt(kWidth) + positions.slice(0, 0, ids.size(1));
  }
  nn::Embedding tokens{kTokens, kWidth};
  torch::Tensor positions;
};
TORCH_MODULE(Embedded);

/// A block of encoder and decoder: attention to itself, to a memory, and a small network.
struct BlockImpl : nn::Module {
  explicit BlockImpl(bool crosses) {
    if (crosses) cross = register_module("cross", Attention());
  }
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& mask,
                        const torch::Tensor& memory = {}, const torch::Tensor& memory_mask = {}) {
    x = norm(x + attention(x, x, mask));
    if (cross) x = norm(x + cross(x, memory, memory_mask));
    return norm(x + narrow(torch::relu(wide(x))));
  }
  Attention attention = register_module("attention", Attention()), cross{nullptr};
  nn::Linear wide = register_module("wide", nn::Linear(kWidth, 2 * kWidth));
  nn::Linear narrow = register_module("narrow", nn::Linear(2 * kWidth, kWidth));
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
};
TORCH_MODULE(Block);

struct TransformerImpl : nn::Module {
  torch::Tensor forward(Batch& batch) { return decode(batch, encode(batch)); }
  torch::Tensor encode(const Batch& batch) {
    return encoder->forward(source(batch.source), batch.source_mask);
  }
  torch::Tensor decode(const Batch& batch, const torch::Tensor& memory) {
    return generator(
        decoder->forward(target(batch.target), batch.target_mask, memory, batch.source_mask));
  }
  std::vector<torch::Tensor> encoder_parameters() const {
    return concatenated(source->parameters(), encoder->parameters());
  }
  std::vector<torch::Tensor> decoder_parameters() const {
    return concatenated(concatenated(target->parameters(), decoder->parameters()),
                        generator->parameters());
  }
  static std::vector<torch::Tensor> concatenated(std::vector<torch::Tensor> all,
                                                 const std::vector<torch::Tensor>& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  Embedded source = register_module("source", Embedded());
  Embedded target = register_module("target", Embedded());
  Block encoder = register_module("encoder", Block(false));
  Block decoder = register_module("decoder", Block(true));
  nn::Linear generator = register_module("generator", nn::Linear(kWidth, kTokens));
};
TORCH_MODULE(Transformer);

Batch make_batch(const torch::Tensor& source, const torch::Tensor& target) {
  const auto length = target.size(1);
  const torch::Tensor past = torch::ones({length, length}, torch::kBool).tril();
  return {source, target, (source != kPad).unsqueeze(1).unsqueeze(2), past};
}

torch::Tensor sequences() {
  torch::Tensor tokens = torch::randint(2, kTokens, {8, kLength});
  tokens.slice(1, kLength - 2).masked_fill_(torch::rand({8, 1}) < 0.5, kPad);
  return tokens;
}

/// The target: the source in reverse, behind a start token.
torch::Tensor shifted(const torch::Tensor& labels) {
  return torch::cat(
      {torch::full({labels.size(0), 1}, kStart, torch::kLong), labels.slice(1, 0, kLength - 1)}, 1);
}

/// The average score of the tokens that greedy decoding picks.
template <class Net>
torch::Tensor decoding_score(Net& net, const torch::Tensor& source) {
  torch::NoGradGuard no_grad;
  torch::Tensor target = torch::full({source.size(0), 1}, kStart, torch::kLong), sum;
#ifdef WITH_TORCHAMP
  const torch::Tensor memory = net.call(&TransformerImpl::encode, make_batch(source, target));
#else
  const torch::Tensor memory = net->encode(make_batch(source, target));
#endif
  for (int64_t i = 0; i < kLength; ++i) {
#ifdef WITH_TORCHAMP
    const auto logits = net.call(&TransformerImpl::decode, make_batch(source, target), memory);
#else
    const auto logits = net->decode(make_batch(source, target), memory);
#endif
    const auto [score, token] = logits.select(1, i).max(1, true);
    target = torch::cat({target, token}, 1);
    sum = i == 0 ? score.mean() : sum + score.mean();
  }
  return sum / kLength;
}

void train(const Run& run) {
  Transformer transformer;
  torch::optim::Adam encoder_adam(transformer->encoder_parameters(), 1e-2);
  torch::optim::Adam decoder_adam(transformer->decoder_parameters(), 1e-2);
#ifdef WITH_TORCHAMP
  auto amped =
      amp::initialize(std::make_tuple(transformer), {encoder_adam, decoder_adam}, run.options());
  auto& net = std::get<0>(amped.models);
  auto &encoder_optimizer = amped.optimizers[0], &decoder_optimizer = amped.optimizers[1];
  if (run.resumes()) amp::load(amped, run.file("amp"));
#else
  auto& net = transformer;
  auto &encoder_optimizer = encoder_adam, &decoder_optimizer = decoder_adam;
  if (run.resumes()) torch::load(net, run.file("net"));
  if (run.resumes()) torch::load(encoder_adam, run.file("encoder_adam"));
  if (run.resumes()) torch::load(decoder_adam, run.file("decoder_adam"));
#endif

  for (int64_t i = run.first(); i < Run::kIterations; ++i) {
    if (run.saves_before(i)) {
#ifdef WITH_TORCHAMP
      amp::save(amped, run.file("amp"));
#else
      torch::save(net, run.file("net"));
      torch::save(encoder_adam, run.file("encoder_adam"));
      torch::save(decoder_adam, run.file("decoder_adam"));
#endif
    }
    torch::manual_seed(i);
    for (auto& group : encoder_optimizer.param_groups()) group.options().set_lr(1e-2 / (1 + i));
    const torch::Tensor source = sequences(), labels = source.flip(1);
    Batch batch = make_batch(source, shifted(labels));
    const torch::Tensor logits = net(batch);
    const auto ignore_padding = F::CrossEntropyFuncOptions().ignore_index(kPad);
    const torch::Tensor loss =
        run.loss(i, F::cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_padding));
    encoder_optimizer.zero_grad();
    decoder_optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(loss, amped.optimizers).backward();
#else
    loss.backward();
#endif
    encoder_optimizer.step();
    decoder_optimizer.step();
    print(i, {loss, decoding_score(net, source)}, transformer->parameters(), encoder_optimizer,
          decoder_optimizer);
  }
}
