// Word embeddings: skip-grams with negative samples, and sparse grads.
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <memory>

#include "run.h"

namespace F = torch::nn::functional;

constexpr int64_t kWords = 30, kDim = 8, kNegatives = 4;

class SkipGram : public torch::nn::Module {
 public:
  SkipGram(int64_t words, int64_t dim)
      : input_(torch::nn::EmbeddingOptions(words, dim).sparse(true)),
        output_(torch::nn::EmbeddingOptions(words, dim).sparse(true)) {
    register_module("input", input_);
    register_module("output", output_);
    torch::NoGradGuard no_grad;
    input_->weight.uniform_(-0.5, 0.5);
    output_->weight.uniform_(-0.5, 0.5);
  }

  /// The loss of words, their neighbours, and words that are not.
  torch::Tensor forward(torch::Tensor word, torch::Tensor neighbour, torch::Tensor negatives) {
    const torch::Tensor v = input_->forward(word);
    const torch::Tensor others = torch::cat({neighbour.unsqueeze(1), negatives}, 1);
    const torch::Tensor products = torch::bmm(output_->forward(others), v.unsqueeze(2)).squeeze(2);
    const torch::Tensor near = products.select(1, 0), far = products.slice(1, 1);
    return -(F::logsigmoid(near) + F::logsigmoid(-far).sum(1)).mean();
  }

  torch::Tensor similarity(int64_t word, int64_t other) const {
    return torch::dot(input_->weight[word], input_->weight[other]);
  }

 private:
  torch::nn::Embedding input_, output_;
};

void train(const Run& run) {
  auto net = std::make_shared<SkipGram>(kWords, kDim);
  torch::optim::SGD sgd(net->parameters(), 10.0);
#ifdef WITH_TORCHAMP
  auto amped = amp::initialize(net, sgd, run.options());
  auto& [model, optimizer] = amped;
  if (run.resumes()) amp::load(amped, run.file("amp"));
#else
  auto& model = *net;
  auto& optimizer = sgd;
  if (run.resumes()) torch::load(net, run.file("net"));
  if (run.resumes()) torch::load(sgd, run.file("sgd"));
#endif

  for (int64_t i = run.first(); i < Run::kIterations; ++i) {
    if (run.saves_before(i)) {
#ifdef WITH_TORCHAMP
      amp::save(amped, run.file("amp"));
#else
      torch::save(net, run.file("net"));
      torch::save(sgd, run.file("sgd"));
#endif
    }
    torch::manual_seed(i);
    const torch::Tensor words = torch::randint(kWords, {32}, torch::kLong);
    const torch::Tensor neighbours = (words + torch::randint(1, 3, {32}, torch::kLong)) % kWords;
    const torch::Tensor negatives = torch::randint(kWords, {32, kNegatives}, torch::kLong);
    const torch::Tensor loss = run.loss(i, model.forward(words, neighbours, negatives));
    optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(loss, optimizer).backward();
#else
    loss.backward();
#endif
    optimizer.step();
    print(i, {loss, net->similarity(0, 1)}, net->parameters(), optimizer);
  }
}
