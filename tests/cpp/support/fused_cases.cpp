#include "fused_cases.h"

#include <ATen/ops/empty_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torchamp/optim/adam.h>
#include <torchamp/optim/lamb.h>
#include <torchamp/optim/novograd.h>
#include <torchamp/optim/sgd.h>

#include <algorithm>

namespace torchamp {
namespace {

using at::Tensor;
using optim::Betas;
using torch::optim::OptimizerParamGroup;

template <class Ours, class Options>
FusedCase alone(const char* name, const Options& options) {
  return {name, [=](const Groups& groups) { return std::make_unique<Ours>(groups, options); },
          [](double lr) { return std::make_unique<Options>(lr); }};
}

template <class Ours, class Theirs, class OurOptions, class TheirOptions>
FusedCase paired(const char* name, const OurOptions& ours, const TheirOptions& theirs) {
  FusedCase each = alone<Ours>(name, ours);
  each.theirs = [=](const Groups& groups) { return std::make_unique<Theirs>(groups, theirs); };
  each.their_lr = [=](double lr) {
    auto options = std::make_unique<TheirOptions>(theirs);
    options->lr(lr);
    return options;
  };
  return each;
}

template <class OurOptions, class TheirOptions>
FusedCase adam(const char* name, const OurOptions& ours, const TheirOptions& theirs) {
  return paired<optim::FusedAdam, torch::optim::Adam>(name, ours, theirs);
}

template <class OurOptions, class TheirOptions>
FusedCase adamw(const char* name, const OurOptions& ours, const TheirOptions& theirs) {
  return paired<optim::FusedAdamW, torch::optim::AdamW>(name, ours, theirs);
}

template <class OurOptions, class TheirOptions>
FusedCase sgd(const char* name, const OurOptions& ours, const TheirOptions& theirs) {
  return paired<optim::FusedSGD, torch::optim::SGD>(name, ours, theirs);
}

std::vector<FusedCase> make_cases() {
  using namespace optim;
  using namespace torch::optim;
  return {
      adam("adam", FusedAdamOptions(1e-2), AdamOptions(1e-2)),
      adam("adam_l2", FusedAdamOptions(1e-2).weight_decay(0.1).eps(1e-3),
           AdamOptions(1e-2).weight_decay(0.1).eps(1e-3)),
      adamw("adamw", FusedAdamWOptions(1e-2), AdamWOptions(1e-2)),
      sgd("sgd", FusedSGDOptions(0.1).weight_decay(0.1), SGDOptions(0.1).weight_decay(0.1)),
      sgd("momentum", FusedSGDOptions(0.1).momentum(0.9).dampening(0.3),
          SGDOptions(0.1).momentum(0.9).dampening(0.3)),
      sgd("nesterov", FusedSGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1),
          SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1)),
      alone<FusedNovoGrad>("novograd", FusedNovoGradOptions()),
      alone<FusedLAMB>("lamb", FusedLAMBOptions()),
  };
}

Groups groups_of(const std::vector<Tensor>& params,
                 std::unique_ptr<torch::optim::OptimizerOptions> of_second) {
  Groups groups;
  groups.emplace_back(std::vector<Tensor>(params.begin(), params.begin() + 2));
  groups.emplace_back(std::vector<Tensor>(params.begin() + 2, params.end()), std::move(of_second));
  return groups;
}

}  // namespace

const std::vector<FusedCase>& fused_cases() {
  static const std::vector<FusedCase> cases = make_cases();
  return cases;
}

std::vector<FusedCase> paired_cases() {
  std::vector<FusedCase> pairs;
  std::copy_if(fused_cases().begin(), fused_cases().end(), std::back_inserter(pairs),
               [](const FusedCase& each) { return each.theirs != nullptr; });
  return pairs;
}

std::vector<Tensor> make_params(at::Device device, at::ScalarType dtype) {
  const std::vector<std::vector<int64_t>> sizes = {{3}, {17, 33}, {0}, {2048}, {4, 3, 2, 2}, {}};
  Random random(5);
  std::vector<Tensor> params;
  for (const auto& each : sizes) {
    const auto format =
        each.size() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    const Tensor value = random.normal(each, at::kFloat, device).to(dtype).contiguous(format);
    params.push_back(value.set_requires_grad(true));
  }
  return params;
}

std::vector<Tensor> copies_of(const std::vector<Tensor>& params) {
  auto copies = clones(params);
  for (Tensor& copy : copies) copy = copy.detach().set_requires_grad(true);
  return copies;
}

void set_grads(const std::vector<Tensor>& params, int step) {
  Random random(100 + step);
  for (const Tensor& param : params) {
    const Tensor grad = random.normal(param.sizes(), at::kFloat, param.device());
    param.mutable_grad() = at::empty_like(param.detach()).copy_(grad);
  }
}

void train(torch::optim::Optimizer& optimizer, const std::vector<Tensor>& params, int steps,
           int first) {
  for (int step = first; step < first + steps; ++step) {
    set_grads(params, step);
    optimizer.step();
  }
}

Groups our_groups(const FusedCase& each, const std::vector<Tensor>& params) {
  return groups_of(params, each.our_lr(0.03));
}

Groups their_groups(const FusedCase& each, const std::vector<Tensor>& params) {
  return groups_of(params, each.their_lr(0.03));
}

const optim::FusedParamState* state_of(torch::optim::Optimizer& optimizer, const Tensor& param) {
  const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return nullptr;
  return dynamic_cast<const optim::FusedParamState*>(found->second.get());
}

std::vector<Tensor> everything(torch::optim::Optimizer& optimizer,
                               const std::vector<Tensor>& params) {
  std::vector<Tensor> all = params;
  for (const Tensor& param : params) {
    const auto* state = state_of(optimizer, param);
    if (state == nullptr) continue;
    for (const auto& [name, tensor] : state->tensors()) all.push_back(tensor);
  }
  return clones(all);
}

double distance(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  double largest = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].numel() == 0) continue;
    const Tensor exact = expected[i].detach().to(at::kDouble);
    const Tensor error = (got[i].detach().to(at::kDouble) - exact) / (exact.abs() + 1.0);
    largest = std::max(largest, error.abs().max().item<double>());
  }
  return largest;
}

}  // namespace torchamp
