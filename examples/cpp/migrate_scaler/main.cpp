// From a hand-written gradient scaler to torchamp: before.h and after.h are versions of one
// program, and this runs both from the same weights, to learn a sine. The loss scale starts too
// high for float16, as after a spike: "before" ends in NaN, "after" skips those steps and learns.
//
//     migrate_scaler --out after.csv
#include <torch/cuda.h>

#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <string>

#include "after.h"
#include "before.h"

constexpr int64_t kSteps = 200;

torch::nn::Sequential make_net(torch::Device device) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(1, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  net->to(device);
  return net;
}

int main(int argc, char** argv) try {
  std::map<std::string, std::string> options{
      {"--device", torch::cuda::is_available() ? "cuda" : "cpu"}, {"--out", "/dev/null"}};
  for (int i = 1; i < argc; i += 2) {
    TORCH_CHECK(options.count(argv[i]) == 1 && i + 1 < argc,
                "expected an option and its value, got ", argv[i]);
    options[argv[i]] = argv[i + 1];
  }
  std::ofstream csv(options["--out"]);
  TORCH_CHECK(csv, "expected --out to name a writable file, got ", options["--out"]);
  csv << std::setprecision(9) << "step,loss,loss_scale,skipped\n";

  const torch::Device device(options["--device"]);
  const torch::Tensor inputs = torch::linspace(-2, 2, 64).unsqueeze(1).to(device);
  const torch::Tensor targets = inputs.mul(2).sin();
  std::cout << "before_loss " << train_before(make_net(device), inputs, targets, kSteps)
            << "\nafter_loss " << train_after(make_net(device), inputs, targets, kSteps, csv)
            << '\n';
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
}
