// Where a model is called: in other threads, or in this one.
#pragma once

#include <torch/types.h>

#include <future>
#include <vector>

class Threads {
 public:
  /// Calls in `count` other threads; in this one if it is 0.
  explicit Threads(int64_t count) : count_(count) {}

  /// The model's outputs. Each thread takes a part of the batch.
  template <class Model>
  torch::Tensor forward(const Model& model, const torch::Tensor& images) const {
    if (count_ == 0) return model(images);
    std::vector<std::future<torch::Tensor>> calls;
    for (const torch::Tensor& part : images.chunk(count_)) {
      calls.push_back(std::async(std::launch::async, [&model, part] { return model(part); }));
    }
    std::vector<torch::Tensor> outputs;
    for (auto& call : calls) outputs.push_back(call.get());
    return torch::cat(outputs);
  }

  /// Calls the function once where the model is called.
  template <class Function>
  auto run(const Function& function) const {
    return count_ == 0 ? function() : std::async(std::launch::async, function).get();
  }

 private:
  int64_t count_;
};
