// Trains a small convolutional network on handwritten digits at any opt level:
//
//     digits --level O2 --epochs 10 --seed 1 --device auto --out steps.csv
//
// examples/python/digits.py is the same program in Python, step for step.
#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>
#include <torchamp/amp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

constexpr int64_t kBatchSize = 64;
constexpr double kLearningRate = 0.05;
constexpr double kMomentum = 0.875;  // exact in float16, to which LibTorch's SGD rounds it at O3
constexpr double kFirstLossScale = 1 << 24;  // too high for float16: the first steps overflow

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 8, 3).padding(1)};
  torch::nn::BatchNorm2d bn1{8};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(8, 16, 3).padding(1).stride(2)};
  torch::nn::BatchNorm2d bn2{16};
  torch::nn::Linear fc1{16 * 4 * 4, 64};
  torch::nn::Linear fc2{64, 10};

  NetImpl() {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  /// [n, 1, 8, 8] → logits [n, 10]
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(bn1(conv1(x)));
    x = torch::relu(bn2(conv2(x)));
    x = torch::relu(fc1(x.flatten(1)));
    return fc2(x);
  }
};
TORCH_MODULE(Net);

struct Digits {
  torch::Tensor images;  ///< float32 [n, 1, 8, 8], 0 … 1
  torch::Tensor labels;  ///< int64 [n]

  /// The digits of these rows, int64 [m].
  Digits take(const torch::Tensor& rows) const {
    const torch::Tensor index = rows.to(labels.device());
    return {images.index_select(0, index), labels.index_select(0, index)};
  }
};

struct Step {
  float loss;
  double loss_scale;  ///< of this step's loss
  bool skipped;
  double seconds;
};

using AmpedNet = amp::Amped<Net>;

AmpedNet initialize(Net net, torch::optim::SGD& sgd, const std::string& level) {
  AmpedNet amped = amp::initialize(net, sgd, amp::Options(level).verbosity(0));
  amp::LossScaler& scaler = amped.model.amp()->loss_scaler();
  if (scaler.dynamic()) scaler.set_loss_scale(kFirstLossScale);
  return amped;
}

std::vector<Step> train(AmpedNet& amped, const Digits& digits, int64_t epochs) {
  using Clock = std::chrono::steady_clock;
  auto& [model, optimizer] = amped;
  std::vector<Step> steps;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (const auto& rows : torch::randperm(digits.labels.size(0)).split(kBatchSize)) {
      const auto start = Clock::now();
      const auto [images, labels] = digits.take(rows);
      const double loss_scale = model.amp()->loss_scaler().loss_scale();
      optimizer.zero_grad();
      const torch::Tensor loss = torch::nn::functional::cross_entropy(model(images), labels);
      amp::scale_loss(loss, optimizer).backward();
      const bool stepped = optimizer.step();
      const std::chrono::duration<double> taken = Clock::now() - start;
      steps.push_back({loss.item<float>(), loss_scale, !stepped, taken.count()});
    }
  }
  return steps;
}

/// The fraction of `digits` that the model classifies correctly.
double accuracy(AmpedNet& amped, const Digits& digits) {
  torch::NoGradGuard no_grad;
  amped.model->eval();
  const torch::Tensor right = amped.model(digits.images).argmax(1).eq(digits.labels);
  return right.to(torch::kDouble).mean().item<double>();
}

/// "auto" selects the GPU if there is one, else the CPU.
torch::Device choose_device(const std::string& name) {
  if (name == "auto") return torch::cuda::is_available() ? torch::kCUDA : torch::kCPU;
  return name;
}

/// All digits of a file, whose rows are of 64 pixels, 0 … 16, and a label.
Digits load_digits(const std::string& path, torch::Device device) {
  std::ifstream file(path);
  TORCH_CHECK(file, "expected --data to name a readable file, got ", path);
  std::vector<int64_t> values;
  for (int64_t value; file >> value; file.ignore(1)) values.push_back(value);
  const torch::Tensor rows = torch::tensor(values).reshape({-1, 65});
  const torch::Tensor images = rows.narrow(1, 0, 64).reshape({-1, 1, 8, 8});
  return {images.to(torch::kFloat).div(16).to(device), rows.select(1, 64).to(device)};
}

/// Peak memory in MiB: torch's allocations on a GPU, otherwise the process's resident memory. NaN
/// on a GPU before torch 2.10, whose allocators do not tell C++.
double peak_memory_mib(torch::Device device) {
  if (device.is_cpu()) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / 1024;
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return static_cast<double>(stats.allocated_bytes[0].peak) / (1 << 20);
#else
  return NAN;
#endif
}

double median_seconds(std::vector<Step> steps) {
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end(),
                   [](const Step& a, const Step& b) { return a.seconds < b.seconds; });
  return middle->seconds;
}

/// Returns how many steps were skipped.
int64_t write_csv(const std::vector<Step>& steps, const std::string& path) {
  std::ofstream csv(path);
  TORCH_CHECK(csv, "expected --out to name a writable file, got ", path);
  csv.precision(9);
  csv << "step,loss,loss_scale,skipped\n";
  int64_t skipped = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    csv << i << ',' << steps[i].loss << ',' << steps[i].loss_scale << ',' << steps[i].skipped
        << '\n';
    skipped += steps[i].skipped;
  }
  return skipped;
}

using Arguments = std::map<std::string, std::string>;

void run(const Arguments& arguments) {
  const Digits digits =
      load_digits(arguments.at("--data"), choose_device(arguments.at("--device")));
  const torch::Device device = digits.labels.device();
  const torch::Tensor tests = torch::arange(digits.labels.size(0)).remainder(5).eq(0);
  torch::manual_seed(std::stoll(arguments.at("--seed")));
  at::globalContext().setDeterministicCuDNN(true);
  Net net;
  net->to(device);
  torch::optim::SGD sgd(net->parameters(),
                        torch::optim::SGDOptions(kLearningRate).momentum(kMomentum));
  AmpedNet amped = initialize(net, sgd, arguments.at("--level"));

  const Digits train_digits = digits.take(tests.logical_not().nonzero().flatten());
  const std::vector<Step> steps = train(amped, train_digits, std::stoll(arguments.at("--epochs")));
  const int64_t skipped = write_csv(steps, arguments.at("--out"));
  std::cout << "level " << arguments.at("--level") << "\nlanguage C++\ndevice " << device
            << "\nbackend " << amp::backend(device).name << "\ntest_accuracy "
            << accuracy(amped, digits.take(tests.nonzero().flatten())) << "\nms_per_step "
            << 1e3 * median_seconds(steps) << "\npeak_memory_mib " << peak_memory_mib(device)
            << "\nloss_scale " << amped.model.amp()->loss_scaler().loss_scale()
            << "\nskipped_steps " << skipped << '\n';
}

/// The defaults, with the values of the command line's `--name value`.
Arguments parse(int argc, char** argv, Arguments arguments) {
  for (int i = 1; i < argc; i += 2) {
    TORCH_CHECK(arguments.count(argv[i]) == 1 && i + 1 < argc,
                "expected an option and its value, got ", argv[i]);
    arguments[argv[i]] = argv[i + 1];
  }
  return arguments;
}

int main(int argc, char** argv) try {
  run(parse(argc, argv,
            {{"--level", "O2"},
             {"--epochs", "10"},
             {"--seed", "1"},
             {"--data", EXAMPLES_DATA "/digits.csv"},
             {"--device", "auto"},
             {"--out", "/dev/null"}}));
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
}
