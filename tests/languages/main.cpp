// Trains a small network at every level by several optimizers, with accumulated gradients, clipping
// and overflows, and prints what happened. tests/python/test_languages.py does the same in Python.
#include <ATen/Parallel.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torchamp/amp.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using Params = std::vector<torch::Tensor>;

constexpr int kSteps = 20;
constexpr int kMicroBatches = 3;
constexpr double kMaxNorm = 0.5;
constexpr double kFirstLossScale = 1 << 24;  // too high for float16: the first steps overflow

struct Recipe {
  const char* name;
  OptimizerPtr (*make)(Params params);
};

template <class Optimizer, class Options>
OptimizerPtr make(Params params, Options options) {
  return std::make_unique<Optimizer>(std::move(params), std::move(options));
}

using namespace amp::optim;

const Recipe kRecipes[] = {
    {"SGD",
     [](Params p) {
       return make<torch::optim::SGD>(p, torch::optim::SGDOptions(0.05).momentum(0.875));
     }},
    {"FusedSGD", [](Params p) { return make<FusedSGD>(p, FusedSGDOptions(0.05).momentum(0.9)); }},
    {"FusedLARS", [](Params p) { return make<FusedLARS>(p, FusedLARSOptions(1.0)); }},
    {"FusedAdam", [](Params p) { return make<FusedAdam>(p, FusedAdamOptions(0.01)); }},
    {"FusedAdamW", [](Params p) { return make<FusedAdamW>(p, FusedAdamWOptions(0.01)); }},
    {"FusedAdagrad", [](Params p) { return make<FusedAdagrad>(p, FusedAdagradOptions(0.05)); }},
    {"FusedNovoGrad", [](Params p) { return make<FusedNovoGrad>(p, FusedNovoGradOptions(0.01)); }},
    {"FusedLAMB", [](Params p) { return make<FusedLAMB>(p, FusedLAMBOptions(0.01)); }},
};

torch::nn::Sequential make_net() {
  torch::nn::Sequential net;  // as arguments, the layers would be made in any order
  net->push_back(torch::nn::Linear(6, 16));
  net->push_back(torch::nn::BatchNorm1d(16));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(16, 3));
  return net;
}

using AmpedNet = amp::Amped<torch::nn::Sequential>;

/// The sum of the micro-batches' losses.
double accumulate(AmpedNet& amped) {
  double sum = 0;
  for (int i = 0; i < kMicroBatches; ++i) {
    const torch::Tensor x = torch::randn({8, 6});
    const torch::Tensor target = torch::randint(3, {8});
    const torch::Tensor loss = torch::nn::functional::cross_entropy(amped.model(x), target);
    sum += loss.item<float>();
    amp::scale_loss scaled_loss(loss / kMicroBatches, amped.optimizer);
    scaled_loss.backward();
  }
  return sum;
}

void train_step(AmpedNet& amped) {
  amped.optimizer.zero_grad();
  const double loss = accumulate(amped);
  const torch::Tensor norm = amp::clip_grad_norm_(amped.optimizer, kMaxNorm);
  amped.optimizer.step();
  const double loss_scale = amped.model.amp()->loss_scaler().loss_scale();
  std::printf("%.17g %.17g %.17g\n", loss, norm.item<double>(), loss_scale);
}

void print_values(const torch::Tensor& param) {
  const torch::Tensor values = param.detach().to(torch::kDouble).flatten();
  for (int64_t i = 0; i < values.numel(); ++i) std::printf("%.17g ", values[i].item<double>());
}

void train(const std::string& level, const Recipe& recipe) {
  torch::manual_seed(3);
  torch::nn::Sequential net = make_net();
  const OptimizerPtr wrapped = recipe.make(net->parameters());
  const auto options = amp::Options(level).materialize_master_grads(false).verbosity(0);
  AmpedNet amped = amp::initialize(net, *wrapped, options);
  amp::LossScaler& scaler = amped.model.amp()->loss_scaler();
  if (scaler.dynamic()) scaler.set_loss_scale(kFirstLossScale);

  std::printf("case %s %s\n", level.c_str(), recipe.name);
  for (int i = 0; i < kSteps; ++i) train_step(amped);
  for (const torch::Tensor& master : amped.optimizer.master_params()) print_values(master);
  std::printf("\n");
}

int main() {
  at::set_num_threads(1);
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5"}) {
    for (const Recipe& recipe : kRecipes) train(level, recipe);
  }
}
