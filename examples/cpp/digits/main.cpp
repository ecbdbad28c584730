// Trains a small convolutional network on handwritten digits at any opt level:
//
//     digits --level O2 --epochs 10 --seed 1 --device auto --out steps.csv
//
// examples/python/digits.py is the same program in Python, step for step.
#include <algorithm>
#include <iostream>

#include "options.h"
#include "train.h"

struct Totals {
  std::vector<double> seconds;
  int64_t skipped_steps = 0;
};

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

Totals train_with_report(AmpedNet& amped, const Digits& digits, const CommandLine& arguments) {
  StepLog log(arguments.out);
  const ProgressBar bar(arguments.level + " C++   ", arguments.epochs * steps_per_epoch(digits));
  Totals totals;
  train(amped, digits, arguments.epochs, [&](const Step& step, double seconds) {
    log.write(step);
    bar.show(step);
    totals.seconds.push_back(seconds);
    totals.skipped_steps += step.skipped;
  });
  return totals;
}

void run(const CommandLine& arguments) {
  const Split digits = load_digits(arguments.data, arguments.device);
  torch::manual_seed(arguments.seed);
  at::globalContext().setDeterministicCuDNN(true);
  Net net;
  net->to(arguments.device);
  torch::optim::SGD sgd(net->parameters(),
                        torch::optim::SGDOptions(kLearningRate).momentum(kMomentum));
  AmpedNet amped = initialize(net, sgd, arguments.level);

  const Totals totals = train_with_report(amped, digits.train, arguments);
  std::cout << "level " << arguments.level << "\nlanguage C++\ndevice " << arguments.device
            << "\nrung " << amp::rung(arguments.device).name       //
            << "\ntest_accuracy " << accuracy(amped, digits.test)  //
            << "\nms_per_step " << 1e3 * median(totals.seconds)    //
            << "\npeak_memory_mib " << peak_memory_mib(arguments.device) << "\nloss_scale "
            << amped.model.amp()->loss_scaler().loss_scale() << "\nskipped_steps "
            << totals.skipped_steps << '\n';
}

int main(int argc, char** argv) try {
  run(parse_command_line(argc, argv));
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
