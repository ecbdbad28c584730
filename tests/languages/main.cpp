// Runs programs of tests/python/support on stdin, as languages/runs.py writes them, and prints
// after every event what it tells and what a program can see. test_languages.py and
// test_mistakes.py compare it with what Python tells and sees. `languages exchange` is
// exchange.cpp.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <torchamp/amp.h>
#include <torchamp/logging.h>

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
#include <tuple>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "core/param.h"

namespace exchange {
int main(const std::vector<std::string>& arguments);
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& kind,
                                                        const std::string& options,
                                                        const std::vector<at::Tensor>& params);
}  // namespace exchange

namespace {

using at::Tensor;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using Params = std::vector<Tensor>;
using Numbers = std::vector<int64_t>;

/// Integers times this are grads and values, as in fuzz/net.py.
constexpr double kUnit = 1.0 / 64;
constexpr int64_t kLargest = 7;
/// Loss scales before the events.
constexpr double kScales[] = {512.0, 64.0, 128.0};

std::vector<std::string> split(const std::string& text, char separator) {
  std::istringstream stream(text);
  std::vector<std::string> parts;
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

/// What an event is told: words such as "lr=0.5", by name.
struct Args : std::map<std::string, std::string> {
  explicit Args(const std::string& text) {
    for (const std::string& word : split(text, ' ')) {
      const size_t place = word.find('=');
      if (place != std::string::npos) emplace(word.substr(0, place), word.substr(place + 1));
    }
  }

  bool has(const std::string& name) const { return count(name) > 0; }
  /// Empty if it is not there.
  std::string text(const std::string& name) const { return has(name) ? at(name) : ""; }
  bool is(const std::string& name) const { return text(name) == "1"; }
  double value(const std::string& name) const { return std::stod(at(name)); }
  int64_t number(const std::string& name) const { return std::stoll(at(name)); }
  Numbers numbers(const std::string& name) const {
    Numbers all;
    for (const std::string& word : split(text(name), ',')) all.push_back(std::stoll(word));
    return all;
  }
};

/// A parameter alone.
struct HolderImpl : torch::nn::Module {
  explicit HolderImpl(const Tensor& zeros) : value(register_parameter("value", zeros)) {}
  Tensor value;
};
TORCH_MODULE(Holder);

/// Parts whose parameters are reached one by one; its forward is of the layers among them.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const std::vector<std::string>& names) {
    for (const std::string& name : names) add(name);
    register_module("tied", parts->ptr(0));
    auto generator = at::detail::createCPUGenerator(names.size());
    const torch::NoGradGuard no_grad;
    for (const Tensor& param : parts->parameters()) {
      const Tensor drawn = at::rand(param.sizes(), generator);
      param.copy_((drawn + 0.5) * (drawn.mul(64).round().remainder(2) * 2 - 1));
    }
  }

  void add(const std::string& name) {
    if (name == "linear") add_layer(torch::nn::Linear(3, 2));
    if (name == "norm") add_layer(torch::nn::BatchNorm1d(3));
    if (name == "layer_norm") add_layer(torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})));
    if (name == "scalar") parts->push_back(Holder(at::zeros({})));
    if (name == "empty") parts->push_back(Holder(at::zeros({0, 2})));
    if (name == "strided") parts->push_back(Holder(at::zeros({3, 2}).t()));
    if (name == "sliced") parts->push_back(Holder(at::zeros({3, 4}).slice(1, 0, 4, 2)));
    if (name == "extra") parts->push_back(Holder(at::zeros({2})));
    if (name == "wide") parts->push_back(Holder(at::zeros({2}, at::kDouble)));
  }

  template <class Layer>
  void add_layer(Layer layer) {
    parts->push_back(layer);
    layers.push_back([layer](const Tensor& x) mutable { return layer(x); });
  }

  Tensor forward(Tensor x) {
    for (const auto& layer : layers) {
      hidden = x;
      x = layer(x);
    }
    return x;
  }

  torch::nn::ModuleList parts = register_module("parts", torch::nn::ModuleList());
  std::vector<std::function<Tensor(const Tensor&)>> layers;
  /// What the last layer was given.
  Tensor hidden;
};
TORCH_MODULE(Net);

/// Integers times kUnit.
Tensor drawn(at::IntArrayRef shape, int64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(-kLargest, kLargest + 1, shape, generator, at::kLong) * kUnit;
}

Tensor drawn_value(at::IntArrayRef shape, int64_t seed) {
  return drawn(shape, seed) + 2.0 + double(seed % 7) / 4;
}

bool has(const Params& params, const Tensor& param) {
  return std::any_of(params.begin(), params.end(),
                     [&](const Tensor& each) { return each.is_same(param); });
}

at::ScalarType dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> dtypes{
      {"torch.bool", at::kBool},
      {"torch.int64", at::kLong},
      {"torch.complex64", at::kComplexFloat},
      {"torch.float8_e4m3fn", at::kFloat8_e4m3fn}};
  return dtypes.at(name);
}

amp::Options options_of(const Args& args) {
  amp::Options options(args.at("level"));
  options.num_losses(args.number("num_losses"));
  for (const auto& [name, value] : args) {
    if (name == "loss_scale") options.loss_scale(value);
    if (name == "keep_batchnorm_fp32") options.keep_batchnorm_fp32(value == "1");
    if (name == "master_weights") options.master_weights(value == "1");
    if (name == "adopt_data_writes") options.adopt_data_writes(value == "1");
    if (name == "materialize_master_grads") options.materialize_master_grads(value == "1");
    if (name == "max_consecutive_skips") options.max_consecutive_skips(std::stoll(value));
    if (name == "min_loss_scale") options.min_loss_scale(std::stod(value));
    if (name == "max_loss_scale") options.max_loss_scale(std::stod(value));
    if (name == "cast_model_type") options.cast_model_type(dtype_of(value));
    if (name == "patch_torch_functions") options.autocast(value == "1");
    if (name == "float8") value == "1" ? options.float8() : options.float8(split(value, ','));
  }
  return options;
}

/// Sets an option of those that the class has.
template <class Options>
void set_option(Options& options, const std::string& name, const std::string& text) {
  bool is_known = false;
  const auto offer = [&](const char* offered, auto setter) {
    if constexpr (std::is_invocable_v<decltype(setter), Options&>) {
      if (name == offered) setter(options);
      is_known |= name == offered;
    }
  };
  const std::vector<std::string> values = split(text, ',');
  const double value = std::stod(values.front()), second = std::stod(values.back());
#define OFFER(OPTION, VALUE) \
  offer(#OPTION, [&](auto& its) -> decltype(its.OPTION(VALUE), void()) { its.OPTION(VALUE); })
  OFFER(lr, value);
  OFFER(momentum, value);
  OFFER(weight_decay, value);
  OFFER(lr_decay, value);
  OFFER(eps, value);
  OFFER(dampening, value);
  OFFER(max_grad_norm, value);
  OFFER(amsgrad, value != 0);
  OFFER(centered, value != 0);
  OFFER(maximize, value != 0);
  OFFER(nesterov, value != 0);
  OFFER(betas, std::make_tuple(value, second));
#undef OFFER
  if (!is_known) throw std::invalid_argument(name);
}

/// An optimizer's class.
struct Kind {
  std::function<OptimizerPtr(const std::vector<Params>& groups, const Args&)> make;
  std::function<void(torch::optim::OptimizerOptions&, const std::string&, const std::string&)> set;
};

/// Each group has half the lr of the one before.
template <class Optimizer, class Options>
Kind kind() {
  Kind its;
  its.make = [](const std::vector<Params>& groups, const Args& args) -> OptimizerPtr {
    Options options(args.value("lr"));
    for (const auto& [name, text] : args) {
      if (name != "kind" && name != "groups" && name != "state_dtype") {
        set_option(options, name, text);
      }
    }
    std::vector<torch::optim::OptimizerParamGroup> all;
    Options of_group = options;
    for (const Params& params : groups) {
      all.emplace_back(params, std::make_unique<Options>(of_group));
      of_group.set_lr(of_group.get_lr() * 0.5);
    }
    auto made = std::make_unique<Optimizer>(all, options);
    if constexpr (std::is_base_of_v<amp::optim::FusedOptimizer, Optimizer>) {
      if (args.has("state_dtype")) {
        made->set_storage(amp::optim::StorageOptions().state_dtype(at::kBFloat16));
      }
    }
    return made;
  };
  its.set = [](torch::optim::OptimizerOptions& options, const std::string& name,
               const std::string& text) {
    set_option(dynamic_cast<Options&>(options), name, text);
  };
  return its;
}

const Kind& kind_of(const std::string& name) {
  using namespace amp::optim;
  using namespace torch::optim;
  static const std::map<std::string, Kind> kinds{
      {"SGD", kind<SGD, SGDOptions>()},
      {"Adam", kind<Adam, AdamOptions>()},
      {"AdamW", kind<AdamW, AdamWOptions>()},
      {"Adagrad", kind<Adagrad, AdagradOptions>()},
      {"RMSprop", kind<RMSprop, RMSpropOptions>()},
      {"FusedSGD", kind<FusedSGD, FusedSGDOptions>()},
      {"FusedAdam", kind<FusedAdam, FusedAdamOptions>()},
      {"FusedAdamW", kind<FusedAdamW, FusedAdamWOptions>()},
      {"FusedNovoGrad", kind<FusedNovoGrad, FusedNovoGradOptions>()},
      {"FusedLAMB", kind<FusedLAMB, FusedLAMBOptions>()}};
  return kinds.at(name);
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
            {"grad_avg", rmsprop->grad_avg()},
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

/// Prints what an event tells, on one line.
void tell(const std::string& name, std::string sentence) {
  std::replace(sentence.begin(), sentence.end(), '\n', ' ');
  std::printf("%s: %s\n", name.c_str(), sentence.c_str());
}

/// As Python names it.
std::string type_of(const std::exception& error) {
  static const std::map<std::type_index, std::string> types{
      {typeid(c10::ValueError), "ValueError"},
      {typeid(c10::TypeError), "TypeError"},
      {typeid(c10::IndexError), "IndexError"},
      {typeid(c10::Error), "RuntimeError"},
      {typeid(std::logic_error), "Different"}};
  const auto found = types.find(typeid(error));
  return found == types.end() ? typeid(error).name() : found->second;
}

/// Tells of an event's error, and of the warnings of torchamp and LibTorch.
class Teller : c10::WarningHandler {
 public:
  Teller() {
    amp::set_log_sink([this](amp::LogLevel level, const std::string& message) {
      if (level == amp::LogLevel::kWarning) tell_of(message);
    });
  }

  template <class Event>
  void follow(Event event) {
    count_ = 0;
    try {
      event();
    } catch (const c10::Error& error) {
      tell("raised", type_of(error) + ": " + error.what_without_backtrace());
    } catch (const std::exception& error) {
      tell("raised", type_of(error) + ": " + error.what());
    }
  }

 private:
  void process(const c10::Warning& warning) override { tell_of(warning.msg()); }
  void tell_of(const std::string& warning) { tell("warned." + std::to_string(count_++), warning); }

  int count_ = 0;
  c10::WarningUtils::WarnAlways always_;
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

/// What ends a block,
struct Raised {};
/// and a backward.
constexpr char kMidway[] = "in the middle of a backward";

/// One training: does to a net and its optimizers what an event says. Its methods are those of
/// LanguagesRun in languages/python_run.py, and of what that is derived from.
class Run {
 public:
  Run(const Args& args, const std::vector<Args>& recipes)
      : setup_(args), recipes_(recipes), net_(split(args.text("parts"), ',')) {
    for (const auto& param : net_->parts->named_parameters()) {
      params_.push_back(*param);
      names_.push_back("parts." + param.key());
    }
    for (const int64_t i : args.numbers("frozen")) params_.at(i).set_requires_grad(false);
  }

  void begin() {
    make(recipes_);
    initialize(setup_);
  }

  /// The optimizer of another training that begins alike is the last from now on.
  void another(const Args&) {
    other_ = std::make_unique<Run>(setup_, recipes_);
    other_->begin();
    optimizers().push_back(other_->optimizers().front());
  }

  /// Releases the model and initializes it again, with new optimizers if there are any.
  void phase(const Args& args, const std::vector<Args>& recipes) {
    amp::release(amped_.value());
    amped_.reset();
    if (!recipes.empty()) make(recipes);
    initialize(args);
  }

  void backward(const Args& args) {
    if (!args.has("closure_of")) return show("found", use(args));
    const Tensor loss = optimizer_at(args, "closure_of").step([&] { return use(args); });
    show("found", loss);
  }

  void step(const Args& args) { optimizer_at(args).step(); }
  void zero(const Args& args) { optimizer_at(args).zero_grad(args.text("to_none") != "0"); }
  void zero_model(const Args& args) { net_->zero_grad(args.text("to_none") != "0"); }

  void drop_grads(const Args& args) {
    for (const Tensor& param : params_of(args)) param.mutable_grad().reset();
  }
  void clip_norm(const Args& args) {
    show("found", amp::clip_grad_norm_(some(args), args.value("max_norm")));
  }
  void clip_value(const Args& args) { amp::clip_grad_value_(some(args), args.value("value")); }
  void clip_model(const Args& args) {
    torch::nn::utils::clip_grad_value_(params_of(args), args.value("limit"));
  }

  void edit(const Args& args) {
    for (const Tensor& master : optimizer_at(args).master_params()) {
      if (master.grad().defined()) edit_in_place(master.mutable_grad(), args);
    }
  }
  void edit_grad(const Args& args) {
    const Tensor& param = param_of(args);
    if (param.grad().defined()) edit_in_place(param.mutable_grad(), args);
  }

  void look(const Args& args) {
    const Params masters = optimizer_at(args).master_params();
    const Params stepped = stepped_by(args.number("of"));
    for (size_t i = 0; i < masters.size(); ++i) {
      show("found." + std::to_string(number_of(stepped[i])), masters[i].grad());
    }
  }

  void write(const Args& args) { write(param_of(args), args); }
  void write_data(const Args& args) {
    const Tensor& param = param_of(args);
    param.variable_data().copy_(drawn_value(param.sizes(), args.number("seed")));
    for (const amp::Optimizer& optimizer : optimizers()) {
      if (!adopts_) amp::refresh_masters(optimizer);
    }
  }
  void write_float32(const Args& args) {
    const amp::Float32Params float32(std::get<0>(amped_.value().models));
    const torch::NoGradGuard no_grad;
    for (Tensor& param : params_of(args)) param.mul_(0.75);
  }
  void halve(const Args& args) {
    const torch::NoGradGuard no_grad;
    param_of(args).mul_(0.5);
  }
  void swap(const Args& args) {
    swapped_.clear();
    for (const Tensor& param : params_of(args)) {
      swapped_.emplace_back(param, param.detach().clone());
      write(param, args);
    }
  }
  void swap_back(const Args&) {
    const torch::NoGradGuard no_grad;
    for (auto& [param, held] : swapped_) param.copy_(held);
    swapped_.clear();
  }

  void freeze(const Args& args) { param_of(args).set_requires_grad(false); }
  void thaw(const Args& args) { param_of(args).set_requires_grad(true); }
  void scale(const Args& args) {
    state()
        .loss_scaler(args.number("loss"))
        .load_state({args.value("value"), args.number("clean")});
  }

  void set(const Args& args) {
    auto& group = made_at(args).param_groups().at(args.number("group"));
    kinds_.at(args.number("of")).set(group.options(), args.at("name"), args.at("value"));
  }
  void state(const Args& args) {
    auto& states = made_at(args).state();
    const auto found = states.find(param_of(args).unsafeGetTensorImpl());
    if (args.at("how") == "clear") return states.clear();
    if (found == states.end()) return;
    if (args.at("how") == "delete") return void(states.erase(found));
    for (auto& [name, tensor] : states_of(*found->second)) {
      if (name != "step" && tensor.defined()) tensor.mul_(0.5);
    }
  }

  void add_group(const Args& args) {
    const Params added = params_of(args);
    drop_free(added);
    std::vector<bool> needed;
    for (const Tensor& param : added) {
      needed.push_back(param.requires_grad());
      param.set_requires_grad(true);
    }
    try {
      optimizer_at(args).add_param_group(torch::optim::OptimizerParamGroup(added));
    } catch (...) {
      for (size_t i = 0; i < added.size(); ++i) added[i].set_requires_grad(needed[i]);
      throw;
    }
  }

  void save(const Args& args) { amp::save(state(), file_of(args)); }
  /// And zeroes all grads.
  void load(const Args& args) {
    amp::load(state(), file_of(args));
    for (amp::Optimizer& optimizer : optimizers()) optimizer.zero_grad();
    net_->zero_grad();
  }

  void show_all() {
    for (size_t i = 0; i < params_.size(); ++i) {
      show("params." + names_[i], params_[i]);
      show("masters." + names_[i], value_of(params_[i]));
      show("grads." + names_[i], params_[i].grad());
    }
    for (const auto& buffer : net_->parts->named_buffers()) {
      show("buffers.parts." + buffer.key(), *buffer);
    }
    if (amped_) show_training();
  }

 private:
  void make(const std::vector<Args>& recipes) {
    made_.clear();
    kinds_.clear();
    for (const Args& recipe : recipes) {
      std::vector<Params> groups;
      for (const std::string& group : split(recipe.at("groups"), '|')) {
        groups.push_back(params_of(Args("params=" + group)));
      }
      kinds_.push_back(kind_of(recipe.at("kind")));
      made_.push_back(kinds_.back().make(groups, recipe));
    }
  }

  void initialize(const Args& args) {
    swapped_.clear();
    losses_ = args.number("num_losses");
    adopts_ = args.is("adopt_data_writes");
    amp::OptimizerRefs refs;
    for (const OptimizerPtr& optimizer : made_) refs.push_back(*optimizer);
    amped_ = amp::initialize(std::make_tuple(net_), refs, options_of(args));
    for (int64_t i = 0; state().loss_scaler(0).dynamic() && i < losses_; ++i) {
      state().loss_scaler(i).set_loss_scale(kScales[i]);
    }
  }

  void show_training() {
    for (int64_t i = 0; i < losses_; ++i) {
      const auto scaler = state().loss_scaler(i).state();
      show("scalers." + std::to_string(i), {scaler.loss_scale, double(scaler.growth_tracker)});
    }
    for (size_t i = 0; i < optimizers().size(); ++i) {
      const std::string name = "optimizers." + std::to_string(i) + ".";
      show_telemetry(name, optimizers()[i]);
      show_states(name, optimizers()[i].wrapped());
    }
  }

  Tensor use(const Args& args) {
    const amp::ScaleLossOptions options{args.number("loss"), args.is("delayed"),
                                        args.is("deferred")};
    const std::string ends = args.text("ends");
    const Tensor loss = loss_of(args);
    if (ends == "outside") {
      loss.backward();
      return loss;
    }
    const std::vector<amp::Optimizer> given = some(args);
    Tensor scaled;
    bool is_ended = false;
    try {
      amp::scale_loss scaled_loss(loss, given, options);
      scaled = scaled_loss;
      zero_in_block(args.text("zero_inside"), given);
      backward_in_block(args, loss, scaled_loss);
      end_block(ends, loss, given);
    } catch (const Raised&) {
      is_ended = true;
    } catch (const std::exception& error) {
      is_ended = std::string(error.what()).find(kMidway) != std::string::npos;
      if (!is_ended) throw;
    }
    if (ends == "hook" && !is_ended) {
      throw std::logic_error("expected the block to be ended by an exception: hook");
    }
    if (args.is("late")) scaled.backward();
    return loss;
  }

  void backward_in_block(const Args& args, const Tensor& loss, amp::scale_loss& scaled_loss) {
    const std::string ends = args.text("ends");
    if (ends == "empty") return;
    if (ends == "unscaled") {
      loss.backward({}, /*retain_graph=*/true);
    } else if (ends == "another") {
      (loss_of(args) * 2).backward();
    } else if (ends == "part") {
      (scaled_loss.tensor() * 1).backward();
    } else if (ends == "grad") {
      assign_grads(args, scaled_loss.tensor());
    } else {
      scaled_loss.backward({}, /*retain_graph=*/ends != "freed");
    }
    if (args.is("twice")) scaled_loss.backward();
  }

  void assign_grads(const Args& args, const Tensor& scaled) {
    const Params params = params_of(Args("params=" + args.text("reach")));
    const Params grads = torch::autograd::grad({scaled}, params);
    for (size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = grads[i];
  }

  void end_block(const std::string& ends, const Tensor& loss,
                 const std::vector<amp::Optimizer>& given) {
    if (ends == "raise") throw Raised();
    if (ends == "step") amp::Optimizer(given.front()).step();
    if (ends == "scale_loss") amp::scale_loss again(loss, given);
    if (ends == "clip_norm") amp::clip_grad_norm_(given, 1.0);
    if (ends == "clip_value") amp::clip_grad_value_(given, 1.0);
    if (ends == "release") amp::release(amped_.value());
  }

  void zero_in_block(const std::string& what, const std::vector<amp::Optimizer>& given) {
    if (what == "model") net_->zero_grad();
    for (amp::Optimizer optimizer : given) {
      if (what == "optimizer") optimizer.zero_grad();
    }
  }

  Tensor loss_of(const Args& args) {
    const int64_t seed = args.number("coefs");
    Tensor loss = at::zeros({});
    std::vector<Tensor> products;
    for (const int64_t i : args.numbers("reach")) {
      products.push_back((params_.at(i).to(at::kFloat) * coefs_of(i, seed, args)).sum());
    }
    if (!products.empty()) loss = at::stack(products).sum();
    if (args.has("layers")) loss = loss + loss_of_layers(args);
    if (args.has("masters_of")) loss = loss + loss_of_masters(args, seed + 100);
    if (args.is("is_tiny")) loss = loss * std::ldexp(1.0, -40);
    if (args.is("is_nan")) loss = loss * NAN;
    return args.has("dtype") ? loss.to(dtype_of(args.at("dtype"))) : loss;
  }

  Tensor loss_of_layers(const Args& args) {
    auto generator = at::detail::createCPUGenerator(args.number("coefs"));
    const Tensor x = at::randn({8, 3}, generator);
    const Tensor target = at::randint(2, {8}, generator, at::kLong);
    const Tensor output = std::get<0>(amped_.value().models)(x);
    if (args.text("ends") == "hook") net_->hidden.register_hook(raise);
    if (args.at("layers") == "inner") return net_->hidden.to(at::kFloat).square().mean();
    if (args.at("layers") == "outputs") return output;
    if (args.at("layers") == "square") return output.square().mean();
    return at::cross_entropy_loss(output, target);
  }

  Tensor loss_of_masters(const Args& args, int64_t seed) {
    const Params masters = optimizer_at(args, "masters_of").master_params();
    const Params stepped = stepped_by(args.number("masters_of"));
    Tensor loss = at::zeros({});
    for (size_t i = 0; i < masters.size(); ++i) {
      const Tensor coefs = coefs_of(number_of(stepped[i]), seed, args);
      loss = loss + (masters[i].to(at::kFloat) * coefs).sum();
    }
    return loss;
  }

  /// A parameter's grads, of which one may be infinite.
  Tensor coefs_of(int64_t i, int64_t seed, const Args& args) const {
    Tensor coefs = drawn(params_.at(i).sizes(), seed * 100 + i);
    if (args.has("inf_in") && args.number("inf_in") == i && coefs.numel() > 0) {
      coefs.view(-1)[-1] = INFINITY;
    }
    return coefs;
  }

  static void raise(const Tensor&) { throw std::runtime_error(kMidway); }

  static void edit_in_place(Tensor& grad, const Args& args) {
    const std::string& how = args.at("how");
    if (how == "fill") grad.fill_(3.0 / 64);
    if (how == "negate") grad.neg_();
    if (how == "replace") grad = grad * 0.5;
    if (how == "data") grad.variable_data().neg_();
  }

  static void write(const Tensor& param, const Args& args) {
    const torch::NoGradGuard no_grad;
    param.copy_(drawn_value(param.sizes(), args.number("seed")));
  }

  /// Drops the grads of those that nothing steps.
  void drop_free(const Params& params) {
    for (const Tensor& param : params) {
      bool is_stepped = false;
      for (size_t i = 0; i < made_.size(); ++i) is_stepped |= has(stepped_by(i), param);
      if (!is_stepped) param.mutable_grad().reset();
    }
  }

  static void show_telemetry(const std::string& name, const amp::Optimizer& optimizer) {
    const amp::Telemetry known = amp::telemetry(optimizer);
    std::vector<double> values{double(known.steps), double(known.skipped_steps),
                               known.stepped ? double(*known.stepped) : -1.0};
    values.insert(values.end(), known.loss_scales.begin(), known.loss_scales.end());
    show(name + "telemetry", values);
  }

  void show_states(const std::string& name, const torch::optim::Optimizer& optimizer) {
    for (size_t i = 0; i < params_.size(); ++i) {
      const auto found = optimizer.state().find(params_[i].unsafeGetTensorImpl());
      if (found == optimizer.state().end() || found->second == nullptr) continue;
      for (const auto& [key, tensor] : states_of(*found->second)) {
        show(name + names_[i] + "." + key, tensor);
      }
    }
  }

  int64_t number_of(const Tensor& param) const {
    const auto found = std::find_if(params_.begin(), params_.end(),
                                    [&](const Tensor& each) { return each.is_same(param); });
    return found - params_.begin();
  }

  const Tensor& param_of(const Args& args) const { return params_.at(args.number("param")); }

  /// Those of the numbers, each once; -1 is no parameter of the net.
  Params params_of(const Args& args) const {
    Params params;
    for (const int64_t i : args.numbers("params")) {
      const Tensor& param = i < 0 ? foreign_ : params_.at(i);
      if (!has(params, param)) params.push_back(param);
    }
    return params;
  }

  Params stepped_by(int64_t of) const {
    Params params;
    for (const auto& group : made_.at(of)->param_groups()) {
      params.insert(params.end(), group.params().begin(), group.params().end());
    }
    return params;
  }

  std::vector<amp::Optimizer> some(const Args& args) {
    std::vector<amp::Optimizer> some;
    for (const int64_t i : args.numbers("of")) some.push_back(optimizers().at(i));
    return some;
  }

  static std::string file_of(const Args& args) {
    return args.has("file") ? args.at("file") : "run.pt";
  }

  /// As in a state dict.
  static Tensor value_of(const Tensor& param) {
    const auto known = amp::core::param_of(param);
    return known == nullptr ? param : known->value();
  }

  amp::Amp& state() { return *std::get<0>(amped_.value().models).amp(); }
  std::vector<amp::Optimizer>& optimizers() { return amped_.value().optimizers; }
  amp::Optimizer& optimizer_at(const Args& args, const std::string& name = "of") {
    return optimizers().at(args.number(name));
  }
  torch::optim::Optimizer& made_at(const Args& args) { return *made_.at(args.number("of")); }

  Args setup_;
  std::vector<Args> recipes_;
  Net net_;
  Params params_;
  std::vector<std::string> names_;
  std::vector<OptimizerPtr> made_;
  std::vector<Kind> kinds_;
  std::optional<amp::AmpedMany<Net>> amped_;
  int64_t losses_ = 1;
  bool adopts_ = false;
  std::vector<std::pair<Tensor, Tensor>> swapped_;
  std::unique_ptr<Run> other_;
  Tensor foreign_ = at::zeros({2}).set_requires_grad(true);
};

const std::map<std::string, void (Run::*)(const Args&)> kEvents = {
    {"backward", &Run::backward},
    {"step", &Run::step},
    {"zero", &Run::zero},
    {"zero_model", &Run::zero_model},
    {"drop_grads", &Run::drop_grads},
    {"clip_norm", &Run::clip_norm},
    {"clip_value", &Run::clip_value},
    {"clip_model", &Run::clip_model},
    {"edit", &Run::edit},
    {"edit_grad", &Run::edit_grad},

    {"look", &Run::look},
    {"write", &Run::write},
    {"write_data", &Run::write_data},
    {"halve", &Run::halve},
    {"write_float32", &Run::write_float32},
    {"swap", &Run::swap},
    {"swap_back", &Run::swap_back},
    {"freeze", &Run::freeze},
    {"thaw", &Run::thaw},
    {"scale", &Run::scale},
    {"set", &Run::set},
    {"state", &Run::state},
    {"add_group", &Run::add_group},
    {"save", &Run::save},
    {"another", &Run::another},
    {"load", &Run::load}};

/// What follows semicolons: the recipes of optimizers.
std::vector<Args> recipes_in(const std::string& line) {
  std::vector<Args> recipes;
  for (const std::string& recipe : split(line, ';')) recipes.emplace_back(recipe);
  recipes.erase(recipes.begin());
  return recipes;
}

void follow(std::optional<Run>& run, const std::string& line) {
  const std::string name = line.substr(0, line.find(' '));
  const Args args(line.substr(0, line.find(';')));
  if (name == "setup") {
    torch::manual_seed(3);
    return run.emplace(args, recipes_in(line)).begin();
  }
  if (name == "phase") return run->phase(args, recipes_in(line));
  (*run.*kEvents.at(name))(args);
}

}  // namespace

OptimizerPtr exchange::make_optimizer(const std::string& kind, const std::string& options,
                                      const Params& params) {
  return kind_of(kind).make({params}, Args(options));
}

int main(int argc, char** argv) {
  if (argc > 1) return exchange::main({argv + 2, argv + argc});
  at::set_num_threads(1);
  std::optional<Run> run;
  Teller teller;
  for (std::string line; std::getline(std::cin, line);) {
    std::printf("%s\n", line.rfind("setup ", 0) == 0 ? "program\nafter" : "after");
    std::fflush(stdout);  // so that a crash tells the event
    teller.follow([&] { follow(run, line); });
    run->show_all();
  }
}
