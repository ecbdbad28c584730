#include <ATen/core/grad_mode.h>
#include <pybind11/functional.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <utility>

#include "autocast/open_autocast.h"
#include "clip/clip.h"
#include "core/backward.h"
#include "core/loan.h"
#include "core/step.h"
#include "python/bindings.h"
#include "python/context.h"
#include "python/tensor_list.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using core::Backward;
using core::BackwardOptions;
using core::OptimizerState;
using OptionalTensor = std::optional<at::Tensor>;
using StateClass = py::class_<OptimizerState, std::shared_ptr<OptimizerState>>;

constexpr const char* kBackward = R"(One backward of one loss, for some optimizers, as a context.

It begins by setting the grads of earlier backwards aside, and ends by unscaling, checking and
updating, or by restoring those grads: after an exception, or when it is dropped. It gives what
begin() returns: itself, or what a subclass makes it.)";

constexpr const char* kStep = R"(One step of an optimizer, as a context.

Within it O1 casts nothing, and parameters with a master are that master, unless the optimizer
steps masters and writes the model itself (writes_model). It begins by synchronizing masters and
model. At its end the model has what was stepped, also after an exception, which may have come
after some were. pause() and resume() are for closures, in which all is as outside of it. Raises
RuntimeError while grads are scaled.)";

constexpr const char* kLoan = R"(What is lent outside of steps.

Within it, from begin() on, parameters with a master have its contents, and what is written to
them reaches both. Of some optimizers, to a method of theirs: grads that the next step uses are
float32, and other grads stay as they are. Of all masters of an initialize, to the program: 16-bit
tensors without a master, `cast`, are float32 too, and grads stay.)";

/// core::Step as a context.
class StepContext {
 public:
  StepContext(std::shared_ptr<OptimizerState> state, std::vector<LossScaler*> scalers,
              bool writes_model)
      : state_(std::move(state)), scalers_(std::move(scalers)), writes_model_(writes_model) {}

  ~StepContext() { end(); }

  void enter() {
    auto scope = std::make_unique<Scope>(*this);
    const py::gil_scoped_release unlocked;
    scope->step.begin("step");
    scope_ = std::move(scope);
  }

  /// Around a closure.
  void pause() {
    const py::gil_scoped_release unlocked;
    scope_->shield.reset();
    scope_->step.pause();
  }

  void resume() {
    const py::gil_scoped_release unlocked;
    scope_->step.begin("step");
    scope_->shield.emplace();
  }

  void exit(const py::object& exception, const py::args&) {
    if (exception.is_none()) {
      const py::gil_scoped_release unlocked;
      scope_->step.finish(overflowed);
    }
    end();
  }

  bool is_open() const { return scope_ != nullptr && scope_->shield.has_value(); }

  std::optional<bool> overflowed;

 private:
  struct Scope {
    explicit Scope(const StepContext& of) : step(of.state_, of.scalers_, of.writes_model_) {
      shield.emplace();
    }
    std::optional<disable_casts> shield;
    core::Step step;
  };

  void end() {
    const py::gil_scoped_release unlocked;
    scope_.reset();
  }

  std::shared_ptr<OptimizerState> state_;
  std::vector<LossScaler*> scalers_;
  bool writes_model_;
  std::unique_ptr<Scope> scope_;  ///< while it is open
};

/// core::Loans as a context, which lends from begin() on.
class LoanContext {
 public:
  explicit LoanContext(const std::vector<std::shared_ptr<OptimizerState>>& states) {
    for (const auto& state : states) loans_.push_back(std::make_unique<core::Loan>(state));
  }
  LoanContext(std::shared_ptr<core::Masters> masters, std::vector<at::Tensor> cast) {
    loans_.push_back(std::make_unique<core::Loan>(std::move(masters), std::move(cast)));
  }
  ~LoanContext() { exit({}); }

  void enter() { is_open_ = true; }

  void begin() {
    if (!is_open_) return;
    const py::gil_scoped_release unlocked;
    for (const auto& loan : loans_) loan->begin();
    lends_ = true;
  }

  void exit(const py::args&) {
    is_open_ = lends_ = false;
    const py::gil_scoped_release unlocked;
    for (const auto& loan : loans_) loan->end();
  }

  bool is_open() const { return is_open_; }
  bool is_due() const { return is_open_ && !lends_; }

 private:
  std::vector<std::unique_ptr<core::Loan>> loans_;
  bool is_open_ = false, lends_ = false;
};

/// A context in which a loan lends nothing.
class PausedLoan {
 public:
  explicit PausedLoan(LoanContext* loan) : loan_(*loan) {}
  ~PausedLoan() {
    if (is_paused_) loan_.enter();
  }

  void enter() {
    lent_ = !loan_.is_due();
    is_paused_ = true;
    loan_.exit({});
  }
  void exit(const py::args&) {
    is_paused_ = false;
    loan_.enter();
    if (lent_) loan_.begin();
  }

 private:
  LoanContext& loan_;
  bool is_paused_ = false, lent_ = false;
};

/// Items that a dict has for the time of a scope.
class TemporaryItems {
 public:
  TemporaryItems(py::dict target, const py::dict& items) : target_(std::move(target)) {
    for (const auto& [key, value] : items) {
      target_[key] = value;
      keys_.append(key);
    }
  }
  ~TemporaryItems() {
    for (const py::handle key : keys_) target_.attr("pop")(key, py::none());
  }

 private:
  py::dict target_;
  py::list keys_;
};

/// In C++, so that no signal of Python's comes between prepare() and the context.
py::object enter_backward(const py::object& self) {
  py::object given = self.attr("begin")();
  auto& backward = self.cast<Backward&>();
  const py::gil_scoped_release unlocked;
  backward.prepare();
  return given;
}

void finish(const Backward::States& states, LossScaler& scaler, int64_t loss_id) {
  Backward backward(states, scaler, {loss_id});
  backward.take_grads();
  backward.finish();
}

void exit_backward(Backward& backward, const py::object& exception, const py::args&) {
  const bool raised = !exception.is_none();
  const py::gil_scoped_release unlocked;
  raised ? backward.cancel() : backward.finish();
}

at::Tensor clip_norm(const std::vector<std::shared_ptr<OptimizerState>>& states, double max_norm,
                     double norm_type, const std::vector<at::Tensor>& counted_elsewhere,
                     std::function<void(const at::Tensor&)> all_reduce_sum) {
  std::vector<OptimizerState*> clipped;
  for (const auto& state : states) clipped.push_back(state.get());
  core::RanksOfShards ranks{{}, std::move(all_reduce_sum)};
  for (const at::Tensor& param : counted_elsewhere) {
    ranks.counted_elsewhere.insert(param.unsafeGetTensorImpl());
  }
  return core::clip_grad_norm(clipped, max_norm, norm_type, ranks);
}

std::unique_ptr<Backward> make_backward(const Backward::States& states, LossScaler& scaler,
                                        int64_t loss_id, bool delay_unscale,
                                        bool delay_overflow_check) {
  return std::make_unique<Backward>(states, scaler,
                                    BackwardOptions{loss_id, delay_unscale, delay_overflow_check});
}

/// Calls `visit` with each tensor of an optimizer's groups, a list of dicts, until one is not
/// right.
template <class Visit>
bool all_of_groups(const py::list& groups, const Visit& visit) {
  for (const py::handle group : groups) {
    PyObject* const params = PyDict_GetItemString(group.ptr(), "params");
    if (params == nullptr || !PyList_Check(params)) return false;
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(params); ++k) {
      PyObject* const param = PyList_GET_ITEM(params, k);
      if (!is_tensor(param) || !visit(THPVariable_Unpack(param))) return false;
    }
  }
  return true;
}

bool holds(const OptimizerState& state, const py::list& groups) {
  size_t i = 0;
  const auto is_it = [&](const at::Tensor& param) { return state.steps_at(i++, param); };
  return all_of_groups(groups, is_it) && i == state.params().size();
}

/// The states that step a master of the groups' parameters.
std::vector<std::shared_ptr<OptimizerState>> owners(const py::list& groups) {
  std::vector<std::shared_ptr<OptimizerState>> found;
  all_of_groups(groups, [&](const at::Tensor& tensor) {
    const auto param = core::param_of(tensor);
    const bool is_owned = param != nullptr && param->has_master() && !param->users.empty();
    if (!is_owned) return true;
    auto owner = param->users.front()->shared_from_this();
    if (std::find(found.begin(), found.end(), owner) == found.end()) found.push_back(owner);
    return true;
  });
  return found;
}

/// Makes the 16-bit tensors among the states of parameters with masters float32: those that were
/// made before initialize, loaded, or put there by the program. `but`: names.
void widen_states(const py::dict& states, const py::set& but) {
  for (const auto& [key, state] : states) {
    if (!is_tensor(key.ptr()) || !PyDict_Check(state.ptr())) continue;
    for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(state)) {
      if (!is_tensor(value.ptr())) continue;
      const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
      if (!at::isReducedFloatingType(tensor.scalar_type())) continue;
      const auto param = core::param_of(THPVariable_Unpack(key.ptr()));
      if (param == nullptr || !param->has_master() || but.contains(name)) continue;
      const at::NoGradGuard no_grad;
      py::reinterpret_borrow<py::dict>(state)[name] = py::cast(tensor.to(at::kFloat));
    }
  }
}

/// A function of parameters, called with what an optimizer steps.
template <auto kFunction>
auto of_params(const OptimizerState& state) {
  return kFunction(state.params());
}

void overwrite_masters(const core::ParamList& params) {
  for (const auto& param : params) param->overwrite_master();
}

std::vector<at::Tensor> with_grads(const core::ParamList& params) {
  std::vector<at::Tensor> found;
  for (const auto& param : params) {
    if (param->grad.is_usable()) found.push_back(param->model);
  }
  return found;
}

void bind_masters(py::module_& module) {
  py::class_<core::Masters, std::shared_ptr<core::Masters>>(
      module, "Masters", "The parameters with masters of one initialize.")
      .def(py::init<bool>(), py::arg("makes_masters"))
      .def("adopt_data_writes", &core::Masters::adopt_data_writes, Unlocked(),
           "From now on, steps adopt what was written to the model, or to masters, through .data.")
      .def("prepare_release", &core::Masters::prepare_release, Unlocked(),
           "Makes the masters what the model holds, in float32.")
      .def("give_back", &core::Masters::give_back, Unlocked(),
           "Gives the model's parameters their masters' memory: they become float32.");
  module.def("owners", &owners, py::arg("param_groups"),
             "The OptimizerStates that step a master of the groups' parameters.");
  module.def("widen_states", &widen_states, py::arg("state"), py::arg("but"),
             "Makes the 16-bit states of parameters with masters float32, but for those names.");
}

void bind_stepped(StateClass& state) {
  state
      .def("holds", &holds, py::arg("param_groups"),
           "Whether an optimizer's groups hold what it steps, in that order.")
      .def(
          "add",
          [](OptimizerState& self, const std::string& function, const at::Tensor& param,
             const OptionalTensor& master) {
            self.add(function.c_str(), param, master.value_or(at::Tensor()));
          },
          py::arg("function"), py::arg("param"), py::arg("master") = py::none(),
          "Steps a parameter from now on. Raises ValueError, which names function, if another "
          "optimizer steps its master.")
      .def(
          "follow",
          [](OptimizerState& self, const std::string& function,
             const std::vector<at::Tensor>& held) { self.follow(function.c_str(), held); },
          py::arg("function"), py::arg("held"),
          "Steps those from now on, the groups' parameters. Raises ValueError, which names "
          "function, for one that comes twice, or whose master another optimizer steps.")
      .def(
          "let_go",
          [](OptimizerState& self, const std::vector<at::Tensor>& held) { self.let_go(held); },
          py::arg("held"), "Steps no longer what is not among those, which the groups hold.")
      .def("params", &OptimizerState::params, "In the order of the groups.")
      .def("model_params", &of_params<core::models_of>, "The model's tensors.")
      .def("master_params", &of_params<core::masters_of>, "What it steps for them.")
      .def("params_with_grads", &of_params<with_grads>,
           "The model's whose grads the next step uses.")
      .def(
          "steps",
          [](const OptimizerState& self, const at::Tensor& tensor) {
            const auto param = core::param_of(tensor);
            return param != nullptr && self.steps(*param);
          },
          py::arg("tensor"), "Whether it steps a tensor of the model.")
      .def("publish_masters", &of_params<core::publish_masters>, Unlocked(),
           "Copies masters that were written from outside to the model, where that was not "
           "written.")
      .def_property_readonly("has_masters", &of_params<core::has_masters>)
      .def("refresh", &of_params<core::refresh>, Unlocked(),
           "Synchronizes model and masters where one was written from outside; the model wins.")
      .def(
          "bring_together",
          [](const OptimizerState& self) { self.masters().bring_together(self.params()); },
          Unlocked(), "Does that, also of what was written through .data if steps adopt that.")
      .def("overwrite_masters", &of_params<overwrite_masters>, Unlocked(),
           "master = float(model), regardless of the version counters.")
      .def("copy_to_model", &of_params<core::copy_to_model>, Unlocked(), "model = master, rounded.")
      .def("check_releasable", &OptimizerState::check_releasable,
           "Raises RuntimeError in a backward.");
}

void bind_fused(StateClass& state) {
  state
      .def_property(
          "lazy", [](const OptimizerState& self) { return self.grads().one_pass().is_on(); },
          [](OptimizerState& self, bool is_on) { self.grads().one_pass().switch_to(is_on); },
          "Whether backwards may only check grads, which a fused step then unscales.")
      .def(
          "unscale", [](OptimizerState& self) { self.grads().unscale_checked(); }, Unlocked(),
          "Unscales grads that are only checked.");
}

void bind_optimizer_state(py::module_& module) {
  StateClass state(module, "OptimizerState",
                   "What one optimizer steps, and the state that its next step depends on.");
  state.def(py::init<std::shared_ptr<core::Masters>, std::shared_ptr<core::Observer>>(),
            py::arg("masters") = nullptr, py::arg("observer") = nullptr);
  bind_stepped(state);
  bind_fused(state);
  state
      .def_property_readonly(
          "warning", &OptimizerState::warning,
          "A warning about what the program may not have meant, found by the last step or look at "
          "the groups; \"\": nothing.")
      .def_property_readonly(
          "grads_are_scaled", [](const OptimizerState& self) { return self.grads().are_scaled(); },
          "Whether a backward is open, or its grads are still scaled.")
      .def(
          "found_inf", [](const OptimizerState& self) { return self.overflows().found_inf(); },
          "float32 scalar, not 0 if the next step is to be skipped; None: it is not.")
      .def(
          "has_overflowed", [](const OptimizerState& self) { return self.overflows().any(); },
          Unlocked(), "Whether the next step is to be skipped. Waits for the device.")
      .def("clear_overflows", &OptimizerState::clear_overflows)
      .def("check_unscaled", &OptimizerState::check_unscaled, Unlocked(), py::arg("function"),
           "Discards grads that were zeroed or skipped. Raises RuntimeError while others are "
           "scaled.")
      .def(
          "end_step",
          [](OptimizerState& self, const std::vector<LossScaler*>& scalers) {
            self.end_step(scalers);
          },
          Unlocked(), py::arg("scalers"),
          "Ends a step, taken or skipped: drops the masters' grads.")
      .def(
          "note_zeroed",
          [](OptimizerState& self, const std::optional<std::vector<at::Tensor>>& model_params) {
            model_params ? self.note_zeroed(*model_params) : self.note_zeroed();
          },
          py::arg("model_params") = py::none(),
          "After the optimizer's zero_grad has zeroed all grads, or the model's those of "
          "model_params, which does not reach those that are set aside, nor overflows.")
      .def("show_grads", &OptimizerState::show_grads, Unlocked(),
           "Unscales grads, now and from now on in every backward; masters show theirs.");
}

}  // namespace

void bind_core(py::module_& module) {
  bind_masters(module);
  bind_optimizer_state(module);
  py::class_<Backward>(module, "Backward", kBackward)
      .def(py::init(&make_backward), py::keep_alive<1, 3>(), py::arg("states"), py::arg("scaler"),
           py::arg("loss_id") = 0, py::arg("delay_unscale") = false,
           py::arg("delay_overflow_check") = false)
      .def_property_readonly("warning", &Backward::warning,
                             "About what the program may not have meant; \"\" if there is nothing.")
      .def("scale", &Backward::scale, Unlocked(), py::arg("loss"),
           "The loss times the current scale.")
      .def("begin", [](py::object self) { return self; })
      .def("__enter__", &enter_backward)
      .def("__exit__", &exit_backward);
  py::class_<StepContext>(module, "Step", kStep)
      .def(py::init<std::shared_ptr<OptimizerState>, std::vector<LossScaler*>, bool>(),
           py::keep_alive<1, 3>(), py::arg("state"), py::arg("scalers"), py::arg("writes_model"))
      .def_property_readonly("is_open", &StepContext::is_open)
      .def_readwrite("overflowed", &StepContext::overflowed,
                     "Whether it is skipped, if the host knows.")
      .def("pause", &StepContext::pause, "Before a closure.")
      .def("resume", &StepContext::resume, "After it.")
      .def("__enter__", &StepContext::enter)
      .def("__exit__", &StepContext::exit);
  py::class_<LoanContext>(module, "Loan", kLoan)
      .def(py::init<const std::vector<std::shared_ptr<OptimizerState>>&>(), py::arg("states"))
      .def_static(
          "of_masters",
          [](std::shared_ptr<core::Masters> masters, std::vector<at::Tensor> cast) {
            return std::make_unique<LoanContext>(std::move(masters), std::move(cast));
          },
          py::arg("masters"), py::arg("cast"), "To the program.")
      .def_property_readonly("is_open", &LoanContext::is_open)
      .def_property_readonly("is_due", &LoanContext::is_due, "Whether begin() is still to come.")
      .def("begin", &LoanContext::begin, "Lends, within the context, unless it does.")
      .def("__enter__", &LoanContext::enter)
      .def("__exit__", &LoanContext::exit);
  bind_context<PausedLoan>(module, "PausedLoan",
                           "A context, around a step, in which a Loan lends nothing.")
      .def(py::init<LoanContext*>(), py::keep_alive<1, 2>(), py::arg("loan"));
  bind_context<Context<TemporaryItems, py::dict, py::dict>>(
      module, "TemporaryItems", "A context in which a dict has further items.")
      .def(py::init<py::dict, py::dict>(), py::arg("target"), py::arg("items"));
  module.def("finish", &finish, Unlocked(), py::arg("states"), py::arg("scaler"),
             py::arg("loss_id"),
             "Ends backwards that ran without a Backward, of a loss that the scaler's scale has "
             "scaled: unscales, checks and updates. Raises RuntimeError where grads are unscaled.");
  module.def("clip_grad_norm", &clip_norm, Unlocked(), py::arg("states"), py::arg("max_norm"),
             py::arg("norm_type") = 2.0, py::arg("counted_elsewhere") = std::vector<at::Tensor>(),
             py::arg("all_reduce_sum") = nullptr,
             "Scales the grads that some OptimizerStates step by so that their total p-norm is at "
             "most max_norm; returns the norm before clipping, a float32 scalar on the device. "
             "counted_elsewhere: parameters of whose grads another rank counts the norm; "
             "all_reduce_sum makes a float64 scalar the sum over all ranks.");
}

}  // namespace torchamp::python
