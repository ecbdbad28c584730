// Three linear layers for the digits, which record the dtypes that they see.
#pragma once

#include <torch/nn/modules/linear.h>

#include <mutex>
#include <set>
#include <string>

#include "digits.h"

/// Names of dtypes, recorded in any thread.
class Dtypes {
 public:
  void record(const torch::Tensor& tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    names_.insert(tensor.scalar_type() == torch::kHalf ? "float16" : "float32");
  }

  std::string text() const {
    std::string text;
    for (const std::string& name : names_) text += (text.empty() ? "" : ", ") + name;
    return text;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

struct NetImpl : torch::nn::Module {
  torch::nn::Linear fc1, fc2, fc3;
  Dtypes inside;  ///< of the first layer's outputs

  explicit NetImpl(int64_t width) : fc1(kPixels, width), fc2(width, width), fc3(width, 10) {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    register_module("fc3", fc3);
  }

  /// [n, 1, 8, 8] → logits [n, 10]
  torch::Tensor forward(const torch::Tensor& images) {
    torch::Tensor x = fc1(images.flatten(1));
    inside.record(x);
    x = fc2(torch::relu(x));
    return fc3(torch::relu(x));
  }
};
TORCH_MODULE(Net);
