// All-reduces over c10d's TCPStore: slow, but in every LibTorch with c10d, and of any device.
#pragma once

#include <torch/types.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

/// The variable, which torchrun and launch.sh set.
inline std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  TORCH_CHECK(value != nullptr, "expected ", name,
              " to be set; start the ranks by launch.sh or torchrun --no-python");
  return value;
}

/// The processes that torchrun or launch.sh has started.
class Ranks {
 public:
  Ranks() : rank_(std::stoll(variable("RANK"))), size_(std::stoll(variable("WORLD_SIZE"))) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
    options.isServer = rank_ == 0;
    options.numWorkers = static_cast<std::size_t>(size_);
    store_ = c10::make_intrusive<c10d::TCPStore>(variable("MASTER_ADDR"), options);
  }

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  /// In place, the elementwise maximum over the ranks, of contiguous float32 tensors.
  void all_reduce_max(const torch::Tensor& tensor) {
    tensor.copy_(torch::stack(gather(tensor)).amax(0));
  }
  /// The same for the mean.
  void all_reduce_mean(const torch::Tensor& tensor) {
    tensor.copy_(torch::stack(gather(tensor)).mean(0));
  }
  /// The last call: the first rank's process, which has the store, waits for the others.
  void leave() {
    const auto left = [](int64_t rank) { return "left/" + std::to_string(rank); };
    store_->set(left(rank_), std::vector<uint8_t>{1});
    for (int64_t rank = 0; rank_ == 0 && rank < size_; ++rank) store_->get(left(rank));
  }

 private:
  /// A copy of every rank's tensor, on the CPU.
  std::vector<torch::Tensor> gather(const torch::Tensor& tensor) {
    store_->set(key(count_, rank_), bytes_of(tensor.detach().cpu().contiguous()));
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

  static std::vector<uint8_t> bytes_of(const torch::Tensor& tensor) {
    const auto* const begin = static_cast<const uint8_t*>(tensor.const_data_ptr());
    return {begin, begin + tensor.nbytes()};
  }

  static std::string key(int64_t count, int64_t rank) {
    return std::to_string(count) + '/' + std::to_string(rank);
  }

  int64_t rank_, size_;
  int64_t count_ = 0;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};
