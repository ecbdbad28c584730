// A character-level transformer with the fused AdamW, gradient clipping and a warm-up schedule:
//
//     char_transformer --level O2 --steps 1000 --out steps.csv
//
// Prints a sample of generated text at the end.
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torchamp/amp.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

constexpr int64_t kContext = 32;
constexpr int64_t kWidth = 48;
constexpr int64_t kHeads = 4;
constexpr int64_t kBlocks = 2;

/// Causal self-attention, then two layers for each position: [n, length, kWidth] → the same shape.
struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm1{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear qkv{kWidth, 3 * kWidth};
  torch::nn::Linear projection{kWidth, kWidth};
  torch::nn::LayerNorm norm2{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear fc1{kWidth, 4 * kWidth};
  torch::nn::Linear fc2{4 * kWidth, kWidth};

  BlockImpl() {
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("projection", projection);
    register_module("norm2", norm2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = x + attention(norm1(x));
    return x + fc2(torch::gelu(fc1(norm2(x))));
  }

  torch::Tensor attention(const torch::Tensor& x) {
    const auto heads = qkv(x).unflatten(-1, {3, kHeads, -1}).transpose(1, 3).unbind(2);
    const torch::Tensor mixed = torch::scaled_dot_product_attention(
        heads[0], heads[1], heads[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return projection(mixed.transpose(1, 2).flatten(2));
  }
};
TORCH_MODULE(Block);

/// Characters, int64 [n, length ≤ kContext] → logits [n, length, alphabet_size].
struct CharTransformerImpl : torch::nn::Module {
  torch::nn::Embedding characters;
  torch::nn::Embedding places{kContext, kWidth};
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear head;

  explicit CharTransformerImpl(int64_t alphabet_size)
      : characters(alphabet_size, kWidth), head(kWidth, alphabet_size) {
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(Block());
    register_module("characters", characters);
    register_module("places", places);
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("head", head);
  }

  torch::Tensor forward(const torch::Tensor& ids) {
    const torch::Tensor place = torch::arange(ids.size(1), ids.device());
    return head(norm(blocks->forward(characters(ids) + places(place))));
  }
};
TORCH_MODULE(CharTransformer);

using AmpedTransformer = amp::Amped<CharTransformer>;

/// Trains on random excerpts of a text, int64 [length]. A skipped step does not count for the
/// schedule.
void train(AmpedTransformer& amped, torch::optim::LRScheduler& schedule, const torch::Tensor& text,
           int64_t steps, std::ostream& csv) {
  auto& [model, optimizer] = amped;
  for (int64_t i = 0; i < steps; ++i) {
    const torch::Tensor starts = torch::randint(text.size(0) - kContext, {16, 1});
    const torch::Tensor places = (starts + torch::arange(kContext)).to(text.device());
    const double loss_scale = model.amp()->loss_scaler().loss_scale();
    optimizer.zero_grad();
    const torch::Tensor logits = model(text.index({places})).flatten(0, 1);
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(logits, text.index({places + 1}).flatten());
    amp::scale_loss(loss, optimizer).backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    const bool stepped = optimizer.step();
    if (stepped) schedule.step();
    csv << i << ',' << loss.item<float>() << ',' << loss_scale << ',' << !stepped << '\n';
  }
}

/// Increases linearly to the optimizer's learning rate over a tenth of the steps, then decays along
/// half a cosine to a tenth of it. Each step() sets the rate of the next step.
class WarmUpThenCosine : public torch::optim::LRScheduler {
 public:
  WarmUpThenCosine(torch::optim::Optimizer& optimizer, int64_t steps)
      : LRScheduler(optimizer), base_(get_current_lrs()), steps_(static_cast<double>(steps)) {}

 private:
  std::vector<double> get_lrs() override {
    std::vector<double> rates = base_;
    for (double& rate : rates) rate *= factor();
    return rates;
  }

  double factor() const {
    const double step = step_count_, warm_up = std::floor(steps_ / 10);
    if (step < warm_up) return (step + 1) / warm_up;
    const double done = std::min(1.0, (step - warm_up) / (steps_ - warm_up));
    return 0.1 + 0.45 * (1 + std::cos(M_PI * done));
  }

  std::vector<double> base_;
  double steps_;
};

/// Each character's place in the alphabet, int64 [text.size()].
torch::Tensor encode(const std::string& text, const std::string& alphabet) {
  std::vector<int64_t> ids;
  for (const char letter : text) ids.push_back(static_cast<int64_t>(alphabet.find(letter)));
  return torch::tensor(ids);
}

/// `prompt`, followed by the model's continuation.
std::string write(const AmpedTransformer& amped, const std::string& alphabet, std::string prompt,
                  torch::Device device) {
  const torch::NoGradGuard no_grad;
  for (int64_t i = 0; i < 200; ++i) {
    const size_t start = prompt.size() - std::min<size_t>(prompt.size(), kContext);
    const torch::Tensor ids = encode(prompt.substr(start), alphabet).to(device).unsqueeze(0);
    const torch::Tensor next = amped.model(ids).select(0, 0).select(0, -1).softmax(-1);
    prompt += alphabet[static_cast<size_t>(next.multinomial(1).item<int64_t>())];
  }
  return prompt;
}

void run(const std::string& level, int64_t steps, const std::string& text, torch::Device device,
         std::ostream& csv) {
  const std::set<char> letters(text.begin(), text.end());
  const std::string alphabet(letters.begin(), letters.end());
  CharTransformer net(static_cast<int64_t>(alphabet.size()));
  net->to(device);
  amp::optim::FusedAdamW adam(net->parameters(), amp::optim::FusedAdamWOptions(5e-3));
  AmpedTransformer amped = amp::initialize(net, adam, level);
  WarmUpThenCosine schedule(amped.optimizer.wrapped(), steps);
  schedule.step();
  train(amped, schedule, encode(text, alphabet).to(device), steps, csv);
  std::cout << "alphabet " << alphabet.size() << "\n\n"
            << write(amped, alphabet, "The sea", device) << '\n';
}

int main(int argc, char** argv) try {
  std::map<std::string, std::string> options{
      {"--level", "O2"},
      {"--steps", "1000"},
      {"--data", EXAMPLES_DATA "/tale.txt"},
      {"--device", torch::cuda::is_available() ? "cuda" : "cpu"},
      {"--out", "/dev/null"}};
  for (int i = 1; i < argc; i += 2) {
    TORCH_CHECK(options.count(argv[i]) == 1 && i + 1 < argc,
                "expected an option and its value, got ", argv[i]);
    options[argv[i]] = argv[i + 1];
  }
  std::ifstream file(options["--data"]);
  TORCH_CHECK(file, "expected --data to name a readable file, got ", options["--data"]);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::ofstream csv(options["--out"]);
  TORCH_CHECK(csv, "expected --out to name a writable file, got ", options["--out"]);
  csv << std::setprecision(9) << "step,loss,loss_scale,skipped\n";
  torch::manual_seed(1);
  run(options["--level"], std::stoll(options["--steps"]), text, options["--device"], csv);
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
}
