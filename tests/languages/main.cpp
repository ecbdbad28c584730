// Does what scripts of events on stdin say, and prints after every event what a program can see.
// scripted.py of tests/python/support does the same in Python; test_languages.py compares them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
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
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/param.h"

namespace {

using at::Tensor;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using Params = std::vector<Tensor>;
using Words = std::vector<std::string>;

constexpr int64_t kLosses = 2;

/// A parameter alone.
struct HolderImpl : torch::nn::Module {
  explicit HolderImpl(const Tensor& drawn) : value(register_parameter("value", drawn)) {}
  Tensor value;
};
TORCH_MODULE(Holder);

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
  Holder scalar = register_module("scalar", Holder(at::rand({})));
  Holder empty = register_module("empty", Holder(at::rand({0, 2})));
  Holder strided = register_module("strided", Holder(at::rand({3, 2}).t()));
  Holder sliced = register_module("sliced", Holder(at::rand({3, 4}).slice(1, 0, 4, 2)));
  Tensor hidden;
};
TORCH_MODULE(Net);

/// Whether `name` is that of a part, or of something in it.
bool is_in(const std::string& name, const std::string& part) {
  return (name + ".").rfind(part + ".", 0) == 0;
}

Words split(const std::string& text, char separator) {
  std::istringstream stream(text);
  Words words;
  for (std::string word; std::getline(stream, word, separator);) words.push_back(word);
  return words;
}

bool has(const Words& words, const std::string& flag) {
  return std::find(words.begin(), words.end(), flag) != words.end();
}

/// The values of words such as "lr=0.5", by name.
std::map<std::string, std::string> options_in(const Words& words) {
  std::map<std::string, std::string> options;
  for (const std::string& word : words) {
    const size_t place = word.find('=');
    if (place != std::string::npos) options[word.substr(0, place)] = word.substr(place + 1);
  }
  return options;
}

Words without_options(const Words& words) {
  Words others;
  std::copy_if(words.begin(), words.end(), std::back_inserter(others),
               [](const std::string& word) { return word.find('=') == std::string::npos; });
  return others;
}

amp::optim::StorageOptions storage_of(const Words& words) {
  amp::optim::StorageOptions storage;
  for (const auto& [name, value] : options_in(words)) {
    if (name == "state_dtype")
      storage.state_dtype(value == "bfloat16" ? at::kBFloat16 : at::kFloat);
    if (name == "stochastic_rounding") storage.stochastic_rounding(value == "1");
  }
  return storage;
}

amp::Options options_of(const Words& words) {
  amp::Options options(words[0]);
  options.loss_scale(words[1]).num_losses(kLosses).verbosity(0);
  for (const auto& [name, value] : options_in(words)) {
    if (name == "keep_batchnorm_fp32") options.keep_batchnorm_fp32(value == "1");
    if (name == "master_weights") options.master_weights(value == "1");
    if (name == "adopt_data_writes") options.adopt_data_writes(value == "1");
    if (name == "materialize_master_grads") options.materialize_master_grads(value == "1");
    if (name == "max_consecutive_skips") options.max_consecutive_skips(std::stoll(value));
    if (name == "min_loss_scale") options.min_loss_scale(std::stod(value));
    if (name == "max_loss_scale") options.max_loss_scale(std::stod(value));
  }
  return options;
}

using Maker = std::function<OptimizerPtr(std::vector<Params>)>;

/// Makes optimizers with groups, each of which has half the lr of the one before.
template <class Optimizer, class Options>
Maker maker(const Options& options) {
  return [options](std::vector<Params> groups) -> OptimizerPtr {
    std::vector<torch::optim::OptimizerParamGroup> all;
    Options of_group = options;
    for (Params& params : groups) {
      all.emplace_back(std::move(params), std::make_unique<Options>(of_group));
      of_group.set_lr(of_group.get_lr() * 0.5);
    }
    return std::make_unique<Optimizer>(all, options);
  };
}

const Maker& maker_of(const std::string& kind) {
  using namespace amp::optim;
  const std::tuple<double, double> betas(0.0, 0.75);
  static const std::map<std::string, Maker> makers{
      {"SGD", maker<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.875))},
      {"Adam",
       maker<torch::optim::Adam>(torch::optim::AdamOptions(0.01).betas(betas).amsgrad(true))},
      {"AdamW", maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).betas(betas))},
      {"Adagrad", maker<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05).lr_decay(0.125))},
      {"RMSprop", maker<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.5))},
      {"FusedSGD", maker<FusedSGD>(FusedSGDOptions(0.05).momentum(0.9))},
      {"FusedLARS", maker<FusedLARS>(FusedLARSOptions(1.0))},
      {"FusedAdam", maker<FusedAdam>(FusedAdamOptions(0.01))},
      {"FusedAdamW", maker<FusedAdamW>(FusedAdamWOptions(0.01))},
      {"FusedAdagrad", maker<FusedAdagrad>(FusedAdagradOptions(0.05))},
      {"FusedNovoGrad", maker<FusedNovoGrad>(FusedNovoGradOptions(0.01))},
      {"FusedLAMB", maker<FusedLAMB>(FusedLAMBOptions(0.01))}};
  return makers.at(kind);
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

using States = std::map<std::string, Tensor>;

template <class AdamState>
States states_of_adam(const AdamState& state) {
  return {{"step", at::scalar_tensor(state.step())},
          {"exp_avg", state.exp_avg()},
          {"exp_avg_sq", state.exp_avg_sq()},
          {"max_exp_avg_sq", state.max_exp_avg_sq()}};
}

/// The tensors that an optimizer keeps for a parameter.
States states_of(const torch::optim::OptimizerParamState& state) {
  using namespace torch::optim;
  if (const auto* sgd = dynamic_cast<const SGDParamState*>(&state)) {
    return {{"momentum_buffer", sgd->momentum_buffer()}};
  }
  if (const auto* adam = dynamic_cast<const AdamParamState*>(&state)) return states_of_adam(*adam);
  if (const auto* adam = dynamic_cast<const AdamWParamState*>(&state)) return states_of_adam(*adam);
  if (const auto* adagrad = dynamic_cast<const AdagradParamState*>(&state)) {
    return {{"step", at::scalar_tensor(adagrad->step())}, {"sum", adagrad->sum()}};
  }
  if (const auto* rmsprop = dynamic_cast<const RMSpropParamState*>(&state)) {
    return {{"step", at::scalar_tensor(rmsprop->step())},
            {"square_avg", rmsprop->square_avg()},
            {"momentum_buffer", rmsprop->momentum_buffer()}};
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

void raise(const Tensor&) {
  throw std::runtime_error("in the middle of a backward");
}

/// Whose grads are drawn.
Tensor loss_of_params(const Params& params, at::Generator& generator) {
  std::vector<Tensor> coefs, products;
  for (const Tensor& param : params) coefs.push_back(at::randn(param.sizes(), generator));
  for (size_t i = 0; i < params.size(); ++i) {
    products.push_back((params[i].to(at::kFloat) * coefs[i]).sum());
  }
  return at::stack(products).sum();
}

/// One training: does to a net and its optimizers what an event says.
class Run {
 public:
  void optimizer(const Words& words) {
    std::vector<Params> groups(1);
    for (const std::string& word : without_options(Words(words.begin() + 1, words.end()))) {
      if (word == "|") {
        groups.emplace_back();
      } else {
        const Params params = params_of({word});
        groups.back().insert(groups.back().end(), params.begin(), params.end());
      }
    }
    OptimizerPtr made = maker_of(words[0])(groups);
    auto* const fused = dynamic_cast<amp::optim::FusedOptimizer*>(made.get());
    if (fused != nullptr) fused->set_storage(storage_of(words));
    wrapped_.push_back(std::move(made));
  }

  void initialize(const Words& words) {
    const amp::OptimizerRefs refs = optimizer_refs();
    amped_ = amp::initialize(std::make_tuple(net_), refs, options_of(words));
  }

  void release(const Words&) {
    amp::release(amped_.value());
    amped_.reset();
    looked_at_.clear();
  }

  void backward(const Words& words) {
    const amp::ScaleLossOptions options{std::stoll(words[0]), has(words, "delayed"),
                                        has(words, "deferred")};
    const Tensor loss = loss_of(words);
    show("loss", loss);
    const std::vector<amp::Optimizer> given = given_to(words);
    Tensor scaled;
    {
      amp::scale_loss scaled_loss(loss, given, options);
      scaled = scaled_loss;
      use(loss, scaled_loss, given, words);
    }
    if (has(words, "late")) scaled.backward();
  }

  void clip_norm(const Words& words) {
    const Tensor norm = amp::clip_grad_norm_(some_from(words, 1), std::stod(words[0]));
    show("norm", at::nan_to_num(norm, INFINITY, INFINITY));
  }
  void clip_value(const Words& words) {
    amp::clip_grad_value_(some_from(words, 1), std::stod(words[0]));
  }
  void clip_model(const Words& words) {
    torch::nn::utils::clip_grad_value_(net_->parameters(), std::stod(words[0]));
  }
  void step(const Words& words) { optimizer_at(words[0]).step(); }
  void closure(const Words& words) {
    optimizer_at(words[0]).step([&] {
      optimizer_at(words[0]).zero_grad();
      backward(Words(words.begin() + 1, words.end()));
      return at::scalar_tensor(0);
    });
  }
  void zero(const Words& words) { optimizer_at(words[0]).zero_grad(words[1] == "none"); }
  /// Which Python notices at once, and C++ at the next look.
  void zero_model(const Words& words) {
    net_->zero_grad(words[0] == "none");
    for (const size_t i : looked_at_) {
      if (amped_) optimizers()[i].master_params();
    }
  }

  void drop(const Words& words) {
    for (const Tensor& param : params_of(words)) param.mutable_grad().reset();
  }

  void replace(const Words& words) {
    for (const Tensor& param : params_of(words)) {
      if (param.grad().defined()) param.mutable_grad() = param.grad() * 0.5;
    }
  }

  void halve_grads(const Words& words) {
    for (const Tensor& param : params_of(words)) {
      if (param.grad().defined()) param.mutable_grad().mul_(0.5);
    }
  }

  void negate(const Words& words) {
    const Params params = optimizer_at(words[0]).master_params();
    looked_at_.insert(std::stoul(words[0]));
    for (const Tensor& param : params) {
      if (param.grad().defined()) param.mutable_grad().neg_();
    }
  }

  void set(const Words& words) {
    for (auto& group : wrapped_.at(std::stoul(words[0]))->param_groups()) {
      set_option(group.options(), words[1], std::stod(words[2]));
    }
  }

  void add_group(const Words& words) {
    net_->extra->weight.set_requires_grad(true);
    auto options = wrapped_.at(std::stoul(words[0]))->defaults().clone();
    options->set_lr(0.0625);
    optimizer_at(words[0]).add_param_group({{net_->extra->weight}, std::move(options)});
  }

  void scale(const Words& words) {
    state()
        .loss_scaler(std::stoll(words[0]))
        .load_state({std::stod(words[1]), std::stoll(words[2]), 1});
  }

  void freeze(const Words& words) {
    for (const Tensor& param : params_of(words)) param.set_requires_grad(false);
  }
  void thaw(const Words& words) {
    for (const Tensor& param : params_of(words)) param.set_requires_grad(true);
  }

  void write(const Words& words) {
    const torch::NoGradGuard no_grad;
    for (const Tensor& param : params_of(words)) param.mul_(0.5);
  }
  void swap(const Words& words) {
    swapped_.clear();
    for (const Tensor& param : params_of(words)) {
      swapped_.emplace_back(param, param.detach().clone());
    }
    write(words);
  }
  void swap_back(const Words&) {
    const torch::NoGradGuard no_grad;
    for (auto& [param, held] : swapped_) param.copy_(held);
  }

  void halve_states(const Words& words) {
    for (const auto& state : wrapped_.at(std::stoul(words[0]))->state()) {
      for (auto& [name, tensor] : states_of(*state.second)) {
        if (name != "step" && tensor.defined()) tensor.mul_(0.5);
      }
    }
  }
  void clear_states(const Words& words) { wrapped_.at(std::stoul(words[0]))->state().clear(); }

  void write_data(const Words& words) {
    for (const Tensor& param : params_of(words)) param.variable_data().mul_(0.5);
  }
  void refresh(const Words&) {
    for (const amp::Optimizer& optimizer : optimizers()) amp::refresh_masters(optimizer);
  }

  /// From now on the grads of masters are shown, which must be made for that.
  void look(const Words& words) {
    for (const amp::Optimizer& optimizer : some_from(words, 0)) {
      optimizer.master_params();
      looked_at_.insert(optimizer.index());
    }
  }

  void save(const Words& words) { amp::save(state(), words[0]); }
  void load(const Words& words) { amp::load(state(), words[0]); }

  void show_all() {
    for (int64_t i = 0; amped_ && i < kLosses; ++i) {
      const auto scaler = state().loss_scaler(i).state();
      show("scalers." + std::to_string(i),
           {scaler.loss_scale, double(scaler.growth_tracker), double(scaler.hysteresis_tracker)});
    }
    for (const auto& param : net_->named_parameters()) {
      show("params." + param.key(), *param);
      show("masters." + param.key(), value_of(*param));
      show("grads." + param.key(), param->grad());
    }
    for (const auto& buffer : net_->named_buffers()) show("buffers." + buffer.key(), *buffer);
    for (size_t i = 0; i < wrapped_.size(); ++i) {
      const std::string name = "optimizers." + std::to_string(i) + ".";
      if (amped_) show_telemetry(name, optimizers()[i]);
      show_optimizer(name, *wrapped_[i], looked_at_.count(i) > 0);
    }
  }

 private:
  static void show_telemetry(const std::string& name, const amp::Optimizer& optimizer) {
    const amp::Telemetry known = amp::telemetry(optimizer);
    std::vector<double> values{double(known.steps), double(known.skipped_steps),
                               known.stepped ? double(*known.stepped) : -1.0};
    values.insert(values.end(), known.loss_scales.begin(), known.loss_scales.end());
    show(name + "telemetry", values);
  }

  static void show_optimizer(const std::string& name, const torch::optim::Optimizer& optimizer,
                             bool is_looking) {
    int place = 0;
    for (const auto& group : optimizer.param_groups()) {
      for (const Tensor& param : group.params()) {
        const std::string prefix = name + std::to_string(place++) + ".";
        if (is_looking) show(prefix + "grad", param.grad());
        const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
        if (found == optimizer.state().end() || found->second == nullptr) continue;
        for (const auto& [key, tensor] : states_of(*found->second)) show(prefix + key, tensor);
      }
    }
  }

  /// Does what the words say in the scope of a scale_loss.
  void use(const Tensor& loss, amp::scale_loss& scaled_loss,
           const std::vector<amp::Optimizer>& given, const Words& words) {
    if (has(words, "raising")) net_->hidden.register_hook(raise);
    for (amp::Optimizer optimizer : given) {
      if (has(words, "zeroing")) optimizer.zero_grad();
    }
    if (has(words, "twice")) scaled_loss.backward({}, /*retain_graph=*/true);
    if (has(words, "unscaled")) {
      loss.backward();
    } else if (!has(words, "unused")) {
      scaled_loss.backward({}, /*retain_graph=*/has(words, "late"));
    }
    if (has(words, "stepping")) amp::Optimizer(given.front()).step();
    if (has(words, "nested")) amp::scale_loss again(loss, given);
  }

  Tensor loss_of(const Words& words) {
    auto generator = at::detail::createCPUGenerator(std::stoull(words[1]));
    const auto options = options_in(words);
    const auto reach = options.find("reach");
    Tensor loss, overflowing;
    if (reach == options.end()) {
      std::tie(loss, overflowing) = loss_of_output(words, generator);
    } else {
      const Params params = params_of(split(reach->second, ','));
      loss = loss_of_params(params, generator);
      overflowing = params.back();
    }
    const auto masters = options.find("masters");
    if (masters != options.end()) {
      look({masters->second});
      loss = loss + loss_of_params(optimizer_at(masters->second).master_params(), generator);
    }
    if (has(words, "overflow")) loss = loss + overflowing.to(at::kFloat).sum() * INFINITY;
    if (has(words, "tiny")) loss = loss * std::ldexp(1.0, -40);
    return has(words, "nan") ? loss * NAN : loss;
  }

  /// The loss of a batch, and a parameter that it reaches; an inner loss reaches the layers before
  /// `hidden` alone.
  std::tuple<Tensor, Tensor> loss_of_output(const Words& words, at::Generator& generator) {
    const Tensor x = at::randn({8, 3}, generator);
    const Tensor target = at::randint(2, {8}, generator, at::kLong);
    const Tensor output = std::get<0>(amped_.value().models)(x);
    if (has(words, "inner")) {
      return {net_->hidden.to(at::kFloat).square().mean(), net_->norm->bias};
    }
    const Tensor loss =
        words[0] == "0" ? at::cross_entropy_loss(output, target) : output.square().mean();
    return {loss, net_->last->bias};
  }

  /// The parameters of parts of the net, and those that are named themselves.
  Params params_of(const Words& parts) const {
    Params params;
    for (const std::string& part : parts) {
      for (const auto& param : net_->named_parameters()) {
        if (is_in(param.key(), part)) params.push_back(*param);
      }
    }
    return params;
  }

  /// The optimizers of a backward; of an inner one the first alone.
  std::vector<amp::Optimizer> given_to(const Words& words) {
    const auto options = options_in(words);
    const auto of = options.find("of");
    if (of != options.end()) return some_from(split(of->second, ','), 0);
    return some_from(has(words, "inner") ? Words{"0"} : Words(), 0);
  }

  /// The optimizers of the numbers from that place on; all if there are none.
  std::vector<amp::Optimizer> some_from(const Words& words, size_t place) {
    std::vector<amp::Optimizer> some;
    for (size_t i = place; i < words.size(); ++i) some.push_back(optimizer_at(words[i]));
    return some.empty() ? optimizers() : some;
  }

  /// As in a state dict.
  static Tensor value_of(const Tensor& param) {
    const auto known = amp::core::param_of(param);
    return known == nullptr ? param : known->value();
  }

  amp::OptimizerRefs optimizer_refs() const {
    amp::OptimizerRefs refs;
    for (const OptimizerPtr& optimizer : wrapped_) refs.push_back(*optimizer);
    return refs;
  }

  amp::Amp& state() { return *std::get<0>(amped_.value().models).amp(); }
  std::vector<amp::Optimizer>& optimizers() { return amped_.value().optimizers; }
  amp::Optimizer& optimizer_at(const std::string& index) {
    return optimizers().at(std::stoul(index));
  }

  Net net_;
  std::vector<OptimizerPtr> wrapped_;
  std::optional<amp::AmpedMany<Net>> amped_;
  std::vector<std::pair<Tensor, Tensor>> swapped_;
  std::set<size_t> looked_at_;  ///< optimizers whose masters' grads are shown
};

const std::map<std::string, void (Run::*)(const Words&)> kEvents = {
    {"optimizer", &Run::optimizer},
    {"initialize", &Run::initialize},
    {"release", &Run::release},
    {"backward", &Run::backward},
    {"clip_norm", &Run::clip_norm},
    {"clip_value", &Run::clip_value},
    {"clip_model", &Run::clip_model},
    {"step", &Run::step},
    {"closure", &Run::closure},
    {"zero", &Run::zero},
    {"zero_model", &Run::zero_model},
    {"drop", &Run::drop},
    {"replace", &Run::replace},
    {"halve_grads", &Run::halve_grads},
    {"negate", &Run::negate},
    {"set", &Run::set},
    {"add_group", &Run::add_group},
    {"scale", &Run::scale},
    {"freeze", &Run::freeze},
    {"thaw", &Run::thaw},
    {"write", &Run::write},
    {"write_data", &Run::write_data},
    {"swap", &Run::swap},
    {"swap_back", &Run::swap_back},
    {"halve_states", &Run::halve_states},
    {"clear_states", &Run::clear_states},
    {"refresh", &Run::refresh},
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
  std::fflush(stdout);  // so that a crash tells the event
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
