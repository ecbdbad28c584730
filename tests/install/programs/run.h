// The command line of a program's run, and the lines that it prints.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <initializer_list>
#include <iostream>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#ifdef WITH_TORCHAMP
#include <torchamp/amp.h>
#endif

/// Words `name=value`, each of which may be left out.
class Run {
 public:
  static constexpr int64_t kIterations = 12;

  explicit Run(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const size_t end = word.find('=');
      value_of(word.substr(0, end)) = word.substr(end + 1);
    }
  }

  /// The first iteration; one that resumes starts in the middle.
  int64_t first() const { return resumes() ? kIterations / 2 : 0; }
  bool resumes() const { return !resume_.empty(); }
  bool saves_before(int64_t iteration) const {
    return !save_.empty() && iteration == kIterations / 2;
  }
  /// A file to save to or to resume from.
  std::string file(const std::string& name) const {
    return (resumes() ? resume_ : save_) + "." + name;
  }

  /// The loss, or an infinite one in the iteration that is to overflow.
  torch::Tensor loss(int64_t iteration, const torch::Tensor& loss) const {
    const bool overflows = std::to_string(iteration) == overflow_;
    return overflows ? loss * std::numeric_limits<double>::infinity() : loss;
  }

#ifdef WITH_TORCHAMP
  amp::Options options() const {
    amp::Options options(level_);
    return loss_scale_.empty() ? options : options.loss_scale(loss_scale_);
  }
#endif

 private:
  std::string& value_of(const std::string& name) {
    if (name == "level") return level_;
    if (name == "loss_scale") return loss_scale_;
    if (name == "overflow") return overflow_;
    if (name == "save") return save_;
    TORCH_CHECK(name == "resume", "expected level, loss_scale, overflow, save or resume, got ",
                name);
    return resume_;
  }

  std::string level_ = "O0", loss_scale_, overflow_, save_, resume_;
};

/// A number that depends on every element and its place.
inline double checksum(const std::vector<torch::Tensor>& tensors) {
  double sum = 0;
  for (const torch::Tensor& tensor : tensors) {
    const torch::Tensor flat = tensor.detach().to(torch::kDouble).flatten();
    sum += flat.dot(torch::arange(1, flat.numel() + 1, torch::kDouble)).item<double>();
  }
  return sum;
}

/// What an optimizer steps: masters, where it has some.
template <class Optimizer>
std::vector<torch::Tensor> stepped_by(Optimizer& optimizer) {
  std::vector<torch::Tensor> all;
  for (auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

template <class Optimizer>
double loss_scale(const Optimizer& optimizer) {
  if constexpr (std::is_base_of_v<torch::optim::Optimizer, Optimizer>) {
    return 1;
  } else {
    return optimizer.amp()->loss_scaler().loss_scale();
  }
}

/// One line: the iteration, losses, checksums of the models and of what each optimizer steps, and
/// the loss scales.
template <class... Optimizers>
void print(int64_t iteration, const std::vector<torch::Tensor>& losses,
           const std::vector<torch::Tensor>& weights, Optimizers&... optimizers) {
  std::cout << iteration << std::hexfloat;
  for (const torch::Tensor& loss : losses) std::cout << ' ' << loss.item<double>();
  std::cout << " | " << checksum(weights);
  ((std::cout << ' ' << checksum(stepped_by(optimizers))), ...);
  std::cout << " |";
  ((std::cout << ' ' << loss_scale(optimizers)), ...);
  std::cout << '\n';
}
