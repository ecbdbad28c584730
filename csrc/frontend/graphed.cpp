#include "frontend/graphed.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torchamp/detail/graphed.h>
#include <torchamp/logging.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>

#include "frontend/optim/fused_steppers.h"
#include "frontend/session.h"
#include "frontend/skip_messages.h"
#include "graphs/captured_iteration.h"

namespace torchamp {
namespace {

using at::Tensor;
using detail::GraphedFunction;
using Inputs = GraphedFunction::Tensors;
using Rates = std::vector<double>;
/// A tensor but for its contents.
using Like = std::tuple<std::vector<int64_t>, at::ScalarType, at::Device, bool>;

/// The calls with inputs of one form that come before a capture: libraries initialize themselves,
/// and optimizers make their states.
constexpr int kWarmUpCalls = 3;
/// So many captures in a row that were replayed once are enough.
constexpr int kUselessCaptures = 3;

const optim::FusedOptions& options_of(const torch::optim::OptimizerParamGroup& group) {
  return static_cast<const optim::FusedOptions&>(group.options());
}

std::vector<Like> likes_of(const Inputs& inputs) {
  std::vector<Like> likes;
  for (const Tensor& input : inputs) {
    likes.emplace_back(input.sizes().vec(), input.scalar_type(), input.device(),
                       input.requires_grad());
  }
  return likes;
}

Rates rates_of(const WrappedOptimizer& optimizer) {
  Rates rates;
  for (const auto& group : optimizer.wrapped->param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  return rates;
}

}  // namespace

namespace graphs {

/// The options of a fused optimizer's groups as they were for a capture.
class GroupOptions {
 public:
  GroupOptions(optim::FusedOptimizer& optimizer, at::Device device)
      : optimizer_(&optimizer), rows_(rows_now()) {
    for (const auto& group : optimizer.param_groups()) {
      const double lr = group.options().get_lr();
      rates_.push_back({at::scalar_tensor(lr, at::TensorOptions(at::kDouble).device(device)), lr});
    }
  }

  const optim::FusedOptimizer* optimizer() const { return optimizer_; }
  /// The group's learning rate, on the device.
  const Tensor& rate(size_t group) const { return rates_.at(group).on_device; }
  /// Whether it has the same states, and options but for learning rates.
  bool are_still() const {
    return rows_now() == rows_ && optimizer_->steppers()->are_current(*optimizer_);
  }
  /// Before a replay.
  void write_rates() {
    for (size_t i = 0; i < rates_.size(); ++i) {
      const double lr = optimizer_->param_groups()[i].options().get_lr();
      if (lr != std::exchange(rates_[i].number, lr)) rates_[i].on_device.fill_(lr);
    }
  }

 private:
  struct Rate {
    Tensor on_device;
    double number;
  };

  std::vector<FusedStepper::Row> rows_now() const {
    std::vector<FusedStepper::Row> rows;
    for (const auto& group : optimizer_->param_groups()) {
      rows.push_back(options_of(group).hyper());
      rows.back().front() = 0;
    }
    return rows;
  }

  optim::FusedOptimizer* optimizer_;
  std::vector<FusedStepper::Row> rows_;
  std::vector<Rate> rates_;
};

/// A captured call.
struct Graph {
  Inputs inputs;
  std::vector<GroupOptions> options;
  std::unique_ptr<CapturedIteration> iteration;
  std::unique_ptr<detail::DeviceGraph> on_device;
  std::any result;
  int64_t replays = 0;

  bool is_current() const {
    const auto are_still = [](const GroupOptions& each) { return each.are_still(); };
    return iteration->is_current() && std::all_of(options.begin(), options.end(), are_still);
  }
};

/// Calls whose inputs differ in their contents alone, and their graph.
struct Form {
  std::vector<Like> like;
  int calls = 0;
  std::vector<Optimizer> optimizers = {};  ///< those that they step
  bool changes_rates = false;
  bool is_plain = false;  ///< all run as they are
  std::optional<Graph> graph = {};
  int useless_captures = 0;
};

}  // namespace graphs

namespace {

using graphs::Form;
using graphs::Graph;
using graphs::GroupOptions;

/// A call of the function in this thread that is not a replay.
struct Call {
  std::vector<Optimizer>* optimizers;
  Graph* captured = nullptr;
};

thread_local Call* current_call = nullptr;

/// Its scope.
class Calling {
 public:
  explicit Calling(Call& call) : before_(std::exchange(current_call, &call)) {}
  ~Calling() { current_call = before_; }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  Call* before_;
};

/// A stream of its own for what comes before a capture, and for the capture. Work of the stream
/// that was current is done before, and waits for it afterwards.
class OwnStream {
 public:
  explicit OwnStream(at::Device device) {
    if (device.is_cpu()) return;  // of a stand-in
    const c10::impl::VirtualGuardImpl streams(device.type());
    guard_.emplace(streams.getStreamFromGlobalPool(device));
    join(guard_->original_stream(), guard_->current_stream());
  }
  ~OwnStream() noexcept(false) {
    if (guard_) join(guard_->current_stream(), guard_->original_stream());
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  static void join(const c10::Stream& first, const c10::Stream& then) {
    c10::Event event(first.device_type());
    event.record(first);
    event.block(then);
  }

  std::optional<c10::StreamGuard> guard_;
};

}  // namespace

void note_step(const Optimizer& optimizer) {
  if (current_call == nullptr) return;
  if (current_call->captured != nullptr) {
    return current_call->captured->iteration->note_step(*wrapped_of(optimizer).state);
  }
  std::vector<Optimizer>& known = *current_call->optimizers;
  const auto is_it = [&](const Optimizer& each) {
    return each.amp() == optimizer.amp() && each.index() == optimizer.index();
  };
  if (std::none_of(known.begin(), known.end(), is_it)) known.push_back(optimizer);
}

void lend_rate(const optim::FusedOptimizer& optimizer, size_t group, FusedStepper& stepper) {
  if (current_call == nullptr || current_call->captured == nullptr) return;
  for (const GroupOptions& each : current_call->captured->options) {
    if (each.optimizer() == &optimizer) {
      stepper.set_lr(static_cast<int64_t>(group), each.rate(group));
    }
  }
}

class GraphedFunction::Impl {
 public:
  Impl(Function function, detail::DeviceGraphs graphs, int64_t max_graphs)
      : function_(std::move(function)), graphs_(std::move(graphs)), max_graphs_(max_graphs) {
    TORCH_CHECK_VALUE(max_graphs >= 1, "graphed: expected max_graphs to be at least 1, got ",
                      max_graphs);
  }

  std::any call(const Inputs& inputs) {
    if (is_plain_) return function_(inputs);
    Form* const form = form_of(inputs);
    if (form == nullptr) return function_(inputs);
    if (form->graph && !form->graph->is_current()) drop(*form);
    if (++form->calls <= kWarmUpCalls) return warm_up(*form, inputs);
    if (form->is_plain || (!form->graph && !is_ready(*form, inputs))) return function_(inputs);
    for (const Optimizer& each : form->optimizers) {
      check_skipped_steps(each.amp()->session(), wrapped_of(each));
      each.amp()->session().casts().forget_copies();
    }
    if (!form->graph) capture(*form, inputs);
    replay(*form->graph, inputs);
    return form->graph->result;
  }

 private:
  Form* form_of(const Inputs& inputs) {
    std::vector<Like> like = likes_of(inputs);
    for (Form& form : forms_) {
      if (form.like == like) return &form;
    }
    if (static_cast<int64_t>(forms_.size()) == max_graphs_) {
      tell(LogLevel::kWarning, c10::str("graphed: expected arguments of at most ", max_graphs_,
                                        " forms (sizes, dtypes and devices), got another; such "
                                        "calls run without a graph. Give "
                                        "graphed a larger max_graphs, or pad the inputs"));
      return nullptr;
    }
    return &forms_.emplace_back(Form{std::move(like)});
  }

  void tell(LogLevel level, const std::string& text) {
    if (told_.insert(text).second) log_message(level, text);
  }

  /// Of inputs and parameters.
  static std::vector<at::Device> devices(const Form& form, const Inputs& inputs) {
    std::vector<at::Device> found;
    const auto add = [&](const Tensor& tensor) {
      const bool is_new = std::find(found.begin(), found.end(), tensor.device()) == found.end();
      if (is_new) found.push_back(tensor.device());
    };
    for (const Tensor& input : inputs) add(input);
    for (const Optimizer& each : form.optimizers) {
      for (const auto& param : wrapped_of(each).state->params()) add(param->model);
    }
    return found;
  }

  std::any warm_up(Form& form, const Inputs& inputs) {
    const auto is_right = [this](at::Device each) { return each.type() == graphs_.device_type; };
    const auto before = devices(form, inputs);
    const auto device = std::find_if(before.begin(), before.end(), is_right);
    std::vector<Rates> rates;
    for (const Optimizer& each : form.optimizers) rates.push_back(rates_of(wrapped_of(each)));
    std::any result;
    {
      std::optional<OwnStream> aside;
      if (device != before.end()) aside.emplace(*device);
      Call call{&form.optimizers};
      const Calling calling(call);
      result = function_(inputs);
    }
    const auto after = devices(form, inputs);
    const auto is_disabled = [](const Optimizer& each) { return !each.amp()->enabled(); };
    is_plain_ = std::none_of(after.begin(), after.end(), is_right) ||
                std::any_of(form.optimizers.begin(), form.optimizers.end(), is_disabled);
    for (size_t i = 0; i < rates.size(); ++i) {
      form.changes_rates |= rates_of(wrapped_of(form.optimizers[i])) != rates[i];
    }
    return result;
  }

  /// Whether a call can be captured. Throws what graphed does.
  bool is_ready(const Form& form, const Inputs& inputs) {
    if (devices(form, inputs).size() > 1) {
      tell(LogLevel::kWarning,
           c10::str("graphed: expected the arguments on the parameters' device, got some on ",
                    devices(form, inputs),
                    "; such calls run without a graph. Move the inputs before the call"));
      return false;
    }
    TORCH_CHECK(
        !form.optimizers.empty(),
        "graphed: expected a function that begins with zero_grad() and ends with step(), got "
        "one that steps no optimizer");
    for (const Optimizer& each : form.optimizers) {
      TORCH_CHECK_TYPE(
          wrapped_of(each).fused != nullptr,
          "graphed: expected optimizers whose steps never wait for the device, got one "
          "of LibTorch's or the program's; take one of amp::optim");
    }
    TORCH_CHECK(!form.changes_rates,
                "graphed: expected a function that leaves learning rates alone, got one that "
                "changes one, which replays would not; step schedulers after the call");
    TORCH_CHECK(
        std::none_of(inputs.begin(), inputs.end(),
                     [](const Tensor& input) { return input.requires_grad(); }),
        "graphed: expected arguments that require no grad, got one that does, which replays "
        "would not reach; compute it in the function, or pass it as x.detach()");
    return true;
  }

  /// The next call runs as it is, for it may make states, and the one after it is captured; unless
  /// captures are of no use, because something changes before each call.
  void drop(Form& form) {
    const std::string what =
        "options, parameters or states of an optimizer, or grads outside of it";
    form.useless_captures = form.graph->replays == 1 ? form.useless_captures + 1 : 0;
    form.is_plain = form.useless_captures == kUselessCaptures;
    form.calls = kWarmUpCalls - 1;
    form.graph.reset();
    if (form.is_plain) {
      tell(LogLevel::kWarning,
           c10::str("graphed: expected ", what, " to stay, got changes before ", kUselessCaptures,
                    " calls in a row; calls run without a graph. Of the options, learning rates "
                    "alone may change"));
    } else {
      tell(LogLevel::kInfo, "graphed: captured again after a change of " + what);
    }
  }

  /// A call that fails is undone, and later ones of its form run as they are.
  void capture(Form& form, const Inputs& inputs) {
    Graph graph;
    for (const Tensor& input : inputs) graph.inputs.push_back(input.detach().clone());
    std::vector<CapturedIteration::Stepped> stepped;
    for (const Optimizer& each : form.optimizers) {
      const WrappedOptimizer& wrapped = wrapped_of(each);
      stepped.push_back({wrapped.state, wrapped.report});
      graph.options.emplace_back(*wrapped.fused, devices(form, inputs).front());
    }
    form.is_plain = true;
    form.graph.reset();
    graph.iteration = std::make_unique<CapturedIteration>(std::move(stepped));
    graph.on_device = graphs_.make();
    const OwnStream own(devices(form, inputs).front());
    Call call{&form.optimizers, &graph};
    const Calling calling(call);
    try {
      run_captured(graph);
    } catch (...) {
      graph.iteration->cancel();
      throw;
    }
    form.graph = std::move(graph);
    form.is_plain = false;
  }

  void run_captured(Graph& graph) {
    graph.on_device->begin_capture();
    try {
      graph.result = function_(graph.inputs);
      graph.iteration->end();
    } catch (...) {
      try {
        graph.on_device->end_capture();
      } catch (const std::exception&) {  // of a capture that has failed
      }
      throw;
    }
    graph.on_device->end_capture();
  }

  static void replay(Graph& graph, const Inputs& inputs) {
    graph.iteration->before_replay();
    for (size_t i = 0; i < inputs.size(); ++i) {
      graph.inputs[i].copy_(inputs[i], /*non_blocking=*/true);
    }
    for (GroupOptions& options : graph.options) options.write_rates();
    graph.on_device->replay();
    ++graph.replays;
    graph.iteration->after_replay();
  }

  Function function_;
  detail::DeviceGraphs graphs_;
  int64_t max_graphs_;
  std::vector<Form> forms_;
  bool is_plain_ = false;  ///< all calls run as they are
  std::unordered_set<std::string> told_;
};

GraphedFunction::GraphedFunction(Function function, detail::DeviceGraphs graphs, int64_t max_graphs)
    : impl_(std::make_shared<Impl>(std::move(function), std::move(graphs), max_graphs)) {}

std::any GraphedFunction::operator()(const Inputs& inputs) const {
  return impl_->call(inputs);
}

}  // namespace torchamp
