// Does what scripts of events on stdin say, and prints after every event what a program can see.
// tests/python/scripted.py does the same in Python; tests/python/test_languages.py compares them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <torchamp/amp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using at::Tensor;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using Params = std::vector<Tensor>;
using Words = std::vector<std::string>;

constexpr int64_t kLosses = 2;

struct NetImpl : torch::nn::Module {
  NetImpl() { extra->weight.set_requires_grad(false); }

  Tensor forward(const Tensor& x) {
    hidden = at::relu(norm(first(x)));
    return last(hidden) + extra(hidden);
  }

  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(4, 2));
  /// Frozen until a group is added for it.
  torch::nn::Linear extra =
      register_module("extra", torch::nn::Linear(torch::nn::LinearOptions(4, 2).bias(false)));
  Tensor hidden;
};
TORCH_MODULE(Net);

template <class Optimizer, class Options>
auto maker(const Options& options) {
  return [options](Params params) -> OptimizerPtr {
    return std::make_unique<Optimizer>(std::move(params), options);
  };
}

OptimizerPtr make_optimizer(const std::string& kind, Params params) {
  using namespace amp::optim;
  static const std::map<std::string, std::function<OptimizerPtr(Params)>> makers{
      {"SGD", maker<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.875))},
      {"FusedSGD", maker<FusedSGD>(FusedSGDOptions(0.05).momentum(0.9))},
      {"FusedLARS", maker<FusedLARS>(FusedLARSOptions(1.0))},
      {"FusedAdam", maker<FusedAdam>(FusedAdamOptions(0.01))},
      {"FusedAdamW", maker<FusedAdamW>(FusedAdamWOptions(0.01))},
      {"FusedAdagrad", maker<FusedAdagrad>(FusedAdagradOptions(0.05))},
      {"FusedNovoGrad", maker<FusedNovoGrad>(FusedNovoGradOptions(0.01))},
      {"FusedLAMB", maker<FusedLAMB>(FusedLAMBOptions(0.01))}};
  return makers.at(kind)(std::move(params));
}

void set_option(torch::optim::OptimizerOptions& options, const std::string& name, double value) {
  if (name == "lr") {
    options.set_lr(value);
  } else if (name == "amsgrad") {
    dynamic_cast<amp::optim::FusedAdamOptions&>(options).amsgrad(value != 0);
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) {
    sgd->momentum(value);
  } else {
    dynamic_cast<amp::optim::FusedSGDOptions&>(options).momentum(value);
  }
}

/// What an optimizer keeps for a parameter.
std::map<std::string, Tensor> tensors_of(const torch::optim::OptimizerParamState& state) {
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) {
    return {{"momentum_buffer", sgd->momentum_buffer()}};
  }
  return dynamic_cast<const amp::optim::FusedParamState&>(state).tensors();
}

void show(const std::string& name, const std::vector<double>& values) {
  std::printf("%s:", name.c_str());
  for (const double value : values) std::printf(" %.17g", std::isnan(value) ? NAN : value);
  std::printf("\n");
}

void show(const std::string& name, const Tensor& tensor) {
  if (!tensor.defined()) return;
  const Tensor values = tensor.detach().to(at::kDouble).flatten().contiguous();
  const double* const begin = values.const_data_ptr<double>();
  show(name, std::vector<double>(begin, begin + values.numel()));
}

bool has(const Words& words, const std::string& flag) {
  return std::find(words.begin(), words.end(), flag) != words.end();
}

void raise(const Tensor&) {
  throw std::runtime_error("in the middle of a backward");
}

/// One training: does to a net and its optimizers what an event says.
class Run {
 public:
  void optimizer(const Words& words) {
    Params params;
    for (size_t i = 1; i < words.size(); ++i) {
      const auto part = net_->named_children()[words[i]]->parameters();
      params.insert(params.end(), part.begin(), part.end());
    }
    wrapped_.push_back(make_optimizer(words[0], params));
  }

  void initialize(const Words& words) {
    const auto options = amp::Options(words[0])
                             .loss_scale(words[1])
                             .num_losses(kLosses)
                             .materialize_master_grads(false)
                             .verbosity(0);
    const amp::OptimizerRefs refs = optimizer_refs();
    amped_ = amp::initialize(std::make_tuple(net_), refs, options);
    for (const amp::Optimizer& optimizer : optimizers()) amp::telemetry(optimizer);
  }

  void backward(const Words& words) {
    const amp::ScaleLossOptions options{std::stoll(words[0]), has(words, "delayed"),
                                        has(words, "deferred")};
    const Tensor loss = loss_of(words);
    show("loss", loss);
    amp::scale_loss scaled_loss(loss, reached(words), options);
    if (has(words, "raising")) net_->hidden.register_hook(raise);
    scaled_loss.backward();
  }

  void clip_norm(const Words& words) {
    const Tensor norm = amp::clip_grad_norm_(optimizers(), std::stod(words[0]));
    show("norm", at::nan_to_num(norm, INFINITY, INFINITY));
  }
  void clip_value(const Words& words) { amp::clip_grad_value_(optimizers(), std::stod(words[0])); }
  void step(const Words& words) { optimizer_at(words[0]).step(); }
  void zero(const Words& words) { optimizer_at(words[0]).zero_grad(words[1] == "none"); }
  void zero_model(const Words& words) { net_->zero_grad(words[0] == "none"); }

  /// Not by the handle's param_groups(), which counts as a look at the masters.
  void set(const Words& words) {
    for (auto& group : optimizer_at(words[0]).wrapped().param_groups()) {
      set_option(group.options(), words[1], std::stod(words[2]));
    }
  }

  void add_group(const Words& words) {
    net_->extra->weight.set_requires_grad(true);
    optimizer_at(words[0]).add_param_group(
        torch::optim::OptimizerParamGroup({net_->extra->weight}));
  }

  void scale(const Words& words) {
    state()
        .loss_scaler(std::stoll(words[0]))
        .load_state({std::stod(words[1]), std::stoll(words[2]), 1});
  }

  void write(const Words&) {
    const torch::NoGradGuard no_grad;
    net_->first->weight.mul_(0.5);
  }

  /// From now on the grads of masters are shown, which must be made for that.
  void look(const Words&) {
    for (const amp::Optimizer& optimizer : optimizers()) amp::master_params(optimizer);
    is_looking_ = true;
  }

  void save(const Words& words) { amp::save(state(), words[0]); }
  void load(const Words& words) { amp::load(state(), words[0]); }

  void show_all() {
    if (!amped_) return;
    for (int64_t i = 0; i < kLosses; ++i) {
      const auto scaler = state().loss_scaler(i).state();
      show("scalers." + std::to_string(i),
           {scaler.loss_scale, double(scaler.growth_tracker), double(scaler.hysteresis_tracker)});
    }
    for (const auto& param : net_->named_parameters()) {
      const Tensor held = held_value(*param);
      show("params." + param.key(), *param);
      show("masters." + param.key(), held.defined() ? held : *param);
      show("grads." + param.key(), param->grad());
    }
    for (const auto& buffer : net_->named_buffers()) show("buffers." + buffer.key(), *buffer);
    for (size_t i = 0; i < optimizers().size(); ++i) show_optimizer(i);
  }

 private:
  void show_optimizer(size_t i) {
    const std::string name = "optimizers." + std::to_string(i) + ".";
    const amp::Telemetry telemetry = amp::telemetry(optimizers()[i]);
    show(name + "steps", {double(telemetry.steps), double(telemetry.skipped_steps),
                          double(telemetry.underflowed_steps)});
    int place = 0;
    for (const auto& group : wrapped_[i]->param_groups()) {
      for (const Tensor& param : group.params()) {
        show_param(name + std::to_string(place++) + ".", *wrapped_[i], param);
      }
    }
  }

  void show_param(const std::string& name, const torch::optim::Optimizer& optimizer,
                  const Tensor& param) const {
    if (is_looking_) show(name + "grad", param.grad());
    const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) return;
    for (const auto& [key, tensor] : tensors_of(*found->second)) show(name + key, tensor);
  }

  /// The loss of a batch; an inner one reaches the layers before `hidden` alone.
  Tensor loss_of(const Words& words) {
    const auto generator = at::detail::createCPUGenerator(std::stoull(words[1]));
    const Tensor x = at::randn({8, 3}, generator);
    const Tensor target = at::randint(2, {8}, generator, at::kLong);
    const Tensor output = std::get<0>(amped_->models)(x);
    const bool is_inner = has(words, "inner");
    const Tensor overflowing = is_inner ? net_->norm->bias : net_->last->bias;
    Tensor loss = words[0] == "0" ? at::cross_entropy_loss(output, target) : output.square().mean();
    if (is_inner) loss = net_->hidden.to(at::kFloat).square().mean();
    if (has(words, "overflow")) loss = loss + overflowing.to(at::kFloat).sum() * INFINITY;
    return loss;
  }

  /// The optimizers of what a loss reaches: of an inner one the first alone.
  std::vector<amp::Optimizer> reached(const Words& words) {
    if (has(words, "inner")) return {optimizers().front()};
    return optimizers();
  }

  /// In float32; undefined if no optimizer steps it.
  Tensor held_value(const Tensor& param) {
    for (const amp::Optimizer& optimizer : optimizers()) {
      const Tensor held = optimizer.master_weights().held_value(param);
      if (held.defined()) return held;
    }
    return {};
  }

  amp::OptimizerRefs optimizer_refs() const {
    amp::OptimizerRefs refs;
    for (const OptimizerPtr& optimizer : wrapped_) refs.push_back(*optimizer);
    return refs;
  }

  amp::Amp& state() { return *std::get<0>(amped_->models).amp(); }
  std::vector<amp::Optimizer>& optimizers() { return amped_->optimizers; }
  amp::Optimizer& optimizer_at(const std::string& index) {
    return optimizers().at(std::stoul(index));
  }

  Net net_;
  std::vector<OptimizerPtr> wrapped_;
  std::optional<amp::AmpedMany<Net>> amped_;
  bool is_looking_ = false;
};

const std::map<std::string, void (Run::*)(const Words&)> kEvents = {
    {"optimizer", &Run::optimizer},
    {"initialize", &Run::initialize},
    {"backward", &Run::backward},
    {"clip_norm", &Run::clip_norm},
    {"clip_value", &Run::clip_value},
    {"step", &Run::step},
    {"zero", &Run::zero},
    {"zero_model", &Run::zero_model},
    {"set", &Run::set},
    {"add_group", &Run::add_group},
    {"scale", &Run::scale},
    {"write", &Run::write},
    {"look", &Run::look},
    {"save", &Run::save},
    {"load", &Run::load}};

void follow(Run& run, const std::string& line) {
  std::istringstream stream(line.substr(0, line.find('#')));
  std::string name;
  stream >> name;
  const Words words{std::istream_iterator<std::string>(stream), {}};
  const auto event = kEvents.at(name);
  std::printf("after\n");
  try {
    (run.*event)(words);
  } catch (const std::exception&) {
    std::printf("raised:\n");
  }
  run.show_all();
}

}  // namespace

int main() {
  at::set_num_threads(1);
  std::optional<Run> run;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "script") {
      std::printf("script\n");
      torch::manual_seed(3);
      run.reset();
      run.emplace();
    } else {
      follow(*run, line);
    }
  }
}
