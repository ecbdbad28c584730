// An LSTM on packed sequences at O1: it learns to recall the first symbol of sequences of different
// lengths.
//
//     lstm --level O1 --steps 400 --out steps.csv
//
// Under O1 the LSTM and the linear layer run in float16, the loss in float32, and the weights stay
// float32. The program itself casts nothing.
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torchamp/amp.h>

#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <string>

constexpr int64_t kSymbols = 8;
constexpr int64_t kHidden = 32;
constexpr int64_t kShortest = 2;
constexpr int64_t kLongest = 8;

/// Symbols, int64 [n, longest], and the length of each row, int64 [n] on the CPU → logits
/// [n, kSymbols], from the state after each row's last symbol.
struct RecallerImpl : torch::nn::Module {
  torch::nn::Embedding embedding{kSymbols, kHidden};
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(kHidden, kHidden).batch_first(true)};
  torch::nn::Linear fc{kHidden, kSymbols};

  RecallerImpl() {
    register_module("embedding", embedding);
    register_module("lstm", lstm);
    register_module("fc", fc);
  }

  torch::Tensor forward(const torch::Tensor& symbols, const torch::Tensor& lengths) {
    const auto packed = torch::nn::utils::rnn::pack_padded_sequence(
        embedding(symbols), lengths, /*batch_first=*/true, /*enforce_sorted=*/false);
    const auto [outputs, state] = lstm->forward_with_packed_input(packed);
    return fc(std::get<0>(state).select(0, 0));
  }
};
TORCH_MODULE(Recaller);

struct Batch {
  torch::Tensor symbols;  ///< int64 [n, kLongest]; beyond a row's length they are noise
  torch::Tensor lengths;  ///< int64 [n], on the CPU
  torch::Tensor first;    ///< int64 [n]
};

Batch random_batch(int64_t count, torch::Device device) {
  const torch::Tensor symbols = torch::randint(kSymbols, {count, kLongest}).to(device);
  return {symbols, torch::randint(kShortest, kLongest + 1, {count}), symbols.select(1, 0)};
}

/// Returns the fraction of new sequences whose first symbol the model recalls in the end.
double train(const std::string& level, int64_t steps, torch::Device device, std::ostream& csv) {
  Recaller net;
  net->to(device);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-2));
  auto [model, optimizer] = amp::initialize(net, adam, level);

  for (int64_t i = 0; i < steps; ++i) {
    const auto [symbols, lengths, first] = random_batch(32, device);
    const double loss_scale = model.amp()->loss_scaler().loss_scale();
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(model(symbols, lengths), first);
    amp::scale_loss(loss, optimizer).backward();
    const bool stepped = optimizer.step();
    csv << i << ',' << loss.item<float>() << ',' << loss_scale << ',' << !stepped << '\n';
  }

  const torch::NoGradGuard no_grad;
  const auto [symbols, lengths, first] = random_batch(256, device);
  return model(symbols, lengths).argmax(1).eq(first).to(torch::kDouble).mean().item<double>();
}

int main(int argc, char** argv) try {
  std::map<std::string, std::string> options{
      {"--level", "O1"},
      {"--steps", "400"},
      {"--device", torch::cuda::is_available() ? "cuda" : "cpu"},
      {"--out", "/dev/null"}};
  for (int i = 1; i < argc; i += 2) {
    TORCH_CHECK(options.count(argv[i]) == 1 && i + 1 < argc,
                "expected an option and its value, got ", argv[i]);
    options[argv[i]] = argv[i + 1];
  }
  std::ofstream csv(options["--out"]);
  TORCH_CHECK(csv, "expected --out to name a writable file, got ", options["--out"]);
  csv << std::setprecision(9) << "step,loss,loss_scale,skipped\n";
  torch::manual_seed(1);
  std::cout << "accuracy "
            << train(options["--level"], std::stoll(options["--steps"]), options["--device"], csv)
            << '\n';
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
}
