// Local SGD on several ranks: each steps by the grads of its own batches, and the weights are
// averaged every few steps. process_group makes all ranks skip the same steps, and keeps their loss
// scales alike, although their grads differ.
//
//     launch.sh 2 ./distributed --steps 200
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torchamp/amp.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

torch::nn::Sequential make_net(torch::Device device) {
  torch::manual_seed(1);  // the same weights on every rank
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(),   //
                            torch::nn::Linear(64, 64), torch::nn::ReLU(),  //
                            torch::nn::Linear(64, 2));
  net->to(device);
  return net;
}

/// The processes that torchrun or launch.sh has started. Their all-reduces go over c10d's TCPStore:
/// slow, but in every LibTorch with c10d, and of any device.
class Ranks {
 public:
  Ranks();
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  /// In place, the elementwise maximum over the ranks, of contiguous float32 tensors.
  void all_reduce_max(const torch::Tensor& tensor);
  /// The same for the mean.
  void all_reduce_mean(const torch::Tensor& tensor);
  /// The last call: the first rank's process, which has the store, waits for the others.
  void leave();

 private:
  /// A copy of every rank's tensor, on the CPU.
  std::vector<torch::Tensor> gather(const torch::Tensor& tensor);

  int64_t rank_, size_;
  int64_t count_ = 0;  ///< of all-reduces
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

using AmpedNet = amp::Amped<torch::nn::Sequential>;

AmpedNet initialize(torch::nn::Sequential net, torch::optim::SGD& sgd, Ranks& ranks) {
  const auto all_reduce_max = [&ranks](const torch::Tensor& t) { ranks.all_reduce_max(t); };
  AmpedNet amped = amp::initialize(
      net, sgd, amp::Options("O2").process_group({all_reduce_max, ranks.rank(), ranks.size()}));
  amped.model.amp()->loss_scaler().set_loss_scale(1 << 24);  // too high: the first steps overflow
  return amped;
}

/// Points of the plane, float32 [n, 2], and whether each is in a ring, int64 [n].
std::pair<torch::Tensor, torch::Tensor> random_points(int64_t count, torch::Device device) {
  const torch::Tensor points = torch::randn({count, 2}).to(device);
  const torch::Tensor radius = points.norm(2, 1);
  return {points, radius.gt(0.7).logical_and(radius.lt(1.5)).to(torch::kLong)};
}

/// Returns how many steps were skipped.
int64_t train(AmpedNet& amped, Ranks& ranks, int64_t steps, torch::Device device) {
  auto& [model, optimizer] = amped;
  int64_t skipped = 0;
  for (int64_t i = 1; i <= steps; ++i) {
    const auto [points, labels] = random_points(64, device);
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(model(points), labels);
    amp::scale_loss(loss, optimizer).backward();
    skipped += !optimizer.step();  // on all ranks or on none
    if (i % 8 > 0 && i < steps) continue;
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& param : optimizer.master_params()) ranks.all_reduce_mean(param);
  }
  return skipped;
}

double accuracy(const AmpedNet& amped, torch::Device device) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(0);  // the same points on every rank
  const auto [points, labels] = random_points(1024, device);
  return amped.model(points).argmax(1).eq(labels).to(torch::kDouble).mean().item<double>();
}

/// A variable that torchrun and launch.sh set.
std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  TORCH_CHECK(value != nullptr, "expected ", name,
              " to be set; start the ranks by launch.sh or torchrun --no-python");
  return value;
}

Ranks::Ranks() : rank_(std::stoll(variable("RANK"))), size_(std::stoll(variable("WORLD_SIZE"))) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
  options.isServer = rank_ == 0;
  options.numWorkers = static_cast<std::size_t>(size_);
  store_ = c10::make_intrusive<c10d::TCPStore>(variable("MASTER_ADDR"), options);
}

void Ranks::all_reduce_max(const torch::Tensor& tensor) {
  tensor.copy_(torch::stack(gather(tensor)).amax(0));
}

void Ranks::all_reduce_mean(const torch::Tensor& tensor) {
  tensor.copy_(torch::stack(gather(tensor)).mean(0));
}

void Ranks::leave() {
  const auto left = [](int64_t rank) { return "left/" + std::to_string(rank); };
  store_->set(left(rank_), std::vector<uint8_t>{1});
  for (int64_t rank = 0; rank_ == 0 && rank < size_; ++rank) store_->get(left(rank));
}

std::vector<torch::Tensor> Ranks::gather(const torch::Tensor& tensor) {
  const auto key = [](int64_t count, int64_t rank) {
    return std::to_string(count) + '/' + std::to_string(rank);
  };
  const torch::Tensor own = tensor.detach().cpu().contiguous();
  const auto* const begin = static_cast<const uint8_t*>(own.const_data_ptr());
  store_->set(key(count_, rank_), std::vector<uint8_t>(begin, begin + own.nbytes()));
  std::vector<torch::Tensor> gathered;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const std::vector<uint8_t> bytes = store_->get(key(count_, rank));
    gathered.push_back(torch::empty(tensor.sizes()));
    std::memcpy(gathered.back().data_ptr(), bytes.data(), bytes.size());
  }
  if (count_ > 0) store_->deleteKey(key(count_ - 1, rank_));  // which all have read by now
  ++count_;
  return gathered;
}

void run(int64_t steps, torch::Device device) {
  Ranks ranks;
  torch::nn::Sequential net = make_net(device);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  AmpedNet amped = initialize(net, sgd, ranks);
  torch::manual_seed(2 + ranks.rank());  // other batches on every rank
  const int64_t skipped = train(amped, ranks, steps, device);

  const std::string name = "rank" + std::to_string(ranks.rank());
  std::ostringstream summary;  // in one piece, because all ranks print
  summary << name << "_accuracy " << accuracy(amped, device) << '\n'
          << name << "_skipped_steps " << skipped << '\n'
          << name << "_loss_scale " << amped.model.amp()->loss_scaler().loss_scale() << '\n';
  std::cout << summary.str() << std::flush;
  ranks.leave();
}

int main(int argc, char** argv) try {
  std::map<std::string, std::string> options{
      {"--steps", "200"}, {"--device", torch::cuda::is_available() ? "cuda" : "cpu"}};
  for (int i = 1; i < argc; i += 2) {
    TORCH_CHECK(options.count(argv[i]) == 1 && i + 1 < argc,
                "expected an option and its value, got ", argv[i]);
    options[argv[i]] = argv[i + 1];
  }
  run(std::stoll(options["--steps"]), options["--device"]);
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
}
