// Trains a small convolutional network on handwritten digits at any opt level:
//
//     digits --level O2 --epochs 10 --seed 1 --device auto --out steps.csv
//
// examples/python/digits.py is the same program in Python, step for step.
#include <algorithm>
#include <iostream>

#include "arguments.h"
#include "memory.h"
#include "train.h"

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

AmpedNet initialize(Net net, torch::optim::SGD& sgd, const std::string& level) {
  AmpedNet amped = amp::initialize(net, sgd, amp::Options(level).verbosity(0));
  amp::LossScaler& scaler = amped.model.amp()->loss_scaler();
  if (scaler.dynamic()) scaler.set_loss_scale(kFirstLossScale);
  return amped;
}

void run(const Arguments& arguments) {
  const torch::Device device = arguments.device();
  const int64_t epochs = arguments.integer("--epochs");
  const std::string& level = arguments.text("--level");
  const Split digits = load_digits(arguments.text("--data"), device);
  torch::manual_seed(arguments.integer("--seed"));
  at::globalContext().setDeterministicCuDNN(true);
  Net net;
  net->to(device);
  torch::optim::SGD sgd(net->parameters(),
                        torch::optim::SGDOptions(kLearningRate).momentum(kMomentum));
  AmpedNet amped = initialize(net, sgd, level);

  Report report(level + " C++   ", epochs * steps_per_epoch(digits.train), arguments.text("--out"));
  std::vector<double> seconds;
  train(amped, digits.train, epochs, [&](const Step& step, double taken) {
    report.add(step);
    seconds.push_back(taken);
  });
  std::cout << "level " << level << "\nlanguage C++\ndevice " << device  //
            << "\nbackend " << amp::backend(device).name                 //
            << "\ntest_accuracy " << accuracy(amped, digits.test)        //
            << "\nms_per_step " << 1e3 * median(seconds)                 //
            << "\npeak_memory_mib " << peak_memory_mib(device)           //
            << "\nloss_scale " << amped.model.amp()->loss_scaler().loss_scale()
            << "\nskipped_steps " << report.skipped_steps() << '\n';
}

int main(int argc, char** argv) {
  return run_example([&] {
    run(Arguments(argc, argv,
                  {{"--level", "O2"},
                   {"--epochs", "10"},
                   {"--seed", "1"},
                   {"--data", EXAMPLES_DATA "/digits.csv"},
                   {"--device", "auto"},
                   {"--out", ""}}));
  });
}
