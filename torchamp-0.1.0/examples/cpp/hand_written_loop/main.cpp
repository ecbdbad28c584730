// Mixed precision by hand: a float16 network with float32 masters, using only LossScaler and the
// ops. It shows what initialize, scale_loss and step do, for programs with their own training loop.
//
//     hand_written_loop --steps 200 --out steps.csv
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torchamp/amp.h>

#include "arguments.h"
#include "digits.h"
#include "report.h"

constexpr int64_t kBatchSize = 64;
constexpr double kLearningRate = 0.2;
constexpr double kFirstLossScale = 1 << 24;  // too high for float16: the first steps overflow

using Tensors = std::vector<torch::Tensor>;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear fc1{kPixels, 48};
  torch::nn::Linear fc2{48, 10};

  NetImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(const torch::Tensor& images) {
    return fc2(torch::relu(fc1(images.flatten(1))));
  }
};
TORCH_MODULE(Net);

/// A float32 copy of each parameter, with a grad to unscale into.
Tensors make_masters(const Tensors& params) {
  Tensors masters;
  for (const torch::Tensor& param : params) {
    masters.push_back(param.detach().clone().set_requires_grad(true));
    masters.back().mutable_grad() = torch::zeros_like(masters.back());
  }
  return masters;
}

Tensors grads_of(const Tensors& params) {
  Tensors grads;
  for (const torch::Tensor& param : params) grads.push_back(param.grad());
  return grads;
}

/// The float16 network, its masters, and the state that training them needs.
class Trainer {
 public:
  explicit Trainer(torch::Device device) : scaler_(scaler_options(), device) {
    net_->to(device);
    params_ = net_->parameters();
    masters_ = make_masters(params_);  // before the cast, which loses precision
    amp::cast_module(*net_, torch::kHalf, /*keep_batchnorm_fp32=*/true);
    sgd_.emplace(masters_, torch::optim::SGDOptions(kLearningRate));
  }

  Step step(const Digits& batch) {
    const double loss_scale = scaler_.loss_scale();
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(forward(batch.images), batch.labels);
    const bool finite = backward(loss);
    if (finite) {
      sgd_->step();
      amp::ops::copy_cast(masters_, params_);
    }
    return {0, loss.item<float>(), loss_scale, !finite};
  }

  double accuracy(const Digits& digits) {
    torch::NoGradGuard no_grad;
    const torch::Tensor right = forward(digits.images).argmax(1).eq(digits.labels);
    return right.to(torch::kDouble).mean().item<double>();
  }

 private:
  static amp::LossScalerOptions scaler_options() {
    amp::LossScalerOptions options;
    options.init_scale = kFirstLossScale;
    options.rule.growth_interval = 50;
    return options;
  }

  torch::Tensor forward(const torch::Tensor& images) {
    return net_(images.to(torch::kHalf)).to(torch::kFloat);
  }

  /// Unscales the grads into the masters' grads and returns whether they are finite, which waits
  /// for the device.
  bool backward(const torch::Tensor& loss) {
    net_->zero_grad();
    const torch::Tensor inv_scale =
        scaler_.inv_scale();  // of this backward: update changes the scale
    scaler_.scale(loss).backward();
    const torch::Tensor found_inf = scaler_.found_inf();
    amp::ops::unscale(grads_of(params_), grads_of(masters_), inv_scale, found_inf);
    scaler_.update();
    return found_inf.item<float>() == 0;
  }

  Net net_;
  Tensors params_;
  Tensors masters_;
  amp::LossScaler scaler_;
  std::optional<torch::optim::SGD> sgd_;
};

void run(const Arguments& arguments) {
  const torch::Device device = arguments.device();
  const int64_t steps = arguments.integer("--steps");
  const Split digits = load_digits(EXAMPLES_DATA "/digits.csv", device);
  torch::manual_seed(arguments.integer("--seed"));
  Trainer trainer(device);

  Report report("hand_written_loop", steps, arguments.text("--out"));
  for (int64_t i = 0; i < steps; ++i) {
    const torch::Tensor rows = torch::randint(digits.train.labels.size(0), {kBatchSize}).to(device);
    Step step = trainer.step(take(digits.train, rows));
    step.index = i;
    report.add(step);
  }
  std::cout << "test_accuracy " << trainer.accuracy(digits.test) << "\nskipped_steps "
            << report.skipped_steps() << '\n';
}

int main(int argc, char** argv) {
  return run_example([&] {
    run(Arguments(argc, argv,
                  {{"--steps", "200"}, {"--seed", "1"}, {"--device", "auto"}, {"--out", ""}}));
  });
}
