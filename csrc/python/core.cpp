#include <pybind11/functional.h>
#include <torch/csrc/autograd/python_variable.h>

#include <utility>

#include "autocast/open_autocast.h"
#include "core/backward.h"
#include "core/clip.h"
#include "core/step.h"
#include "python/bindings.h"
#include "python/context.h"
#include "python/suppressions.h"
#include "python/tensor_list.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using core::Backward;
using core::OptimizerState;
using OptionalTensor = std::optional<at::Tensor>;
using StateClass = py::class_<OptimizerState, std::shared_ptr<OptimizerState>>;

constexpr const char* kBackward = R"(One backward of one loss, for some optimizers, as a context.

It begins by setting the grads of earlier backwards aside, and ends by unscaling, checking and
updating, or by restoring those grads: after an exception, or when it is dropped. It gives what
begin() returns: itself, or what a subclass makes it.)";

constexpr const char* kStep = R"(One step of an optimizer, as a context.

Within it O1 casts nothing, and accesses to the masters do not count. It begins by synchronizing
masters and model. It ends by copying the masters to the model, also after an exception, which may
have come after some were stepped, unless the optimizer has written the model itself
(writes_model). Raises RuntimeError while grads are scaled.)";

OptionalTensor optional(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

/// Grads that have an object of Python's are freed under the GIL, which costs more to take for
/// each.
void zero_grad(OptimizerState& state, bool set_to_none) {
  std::optional<py::gil_scoped_release> unlocked;
  if (!set_to_none) unlocked.emplace();
  state.zero_grad(set_to_none);
}

/// core::Step as a context.
class StepContext {
 public:
  StepContext(std::shared_ptr<OptimizerState> state, std::vector<LossScaler*> scalers,
              std::shared_ptr<Suppressions> suppressions, bool writes_model)
      : state_(std::move(state)),
        scalers_(std::move(scalers)),
        suppressions_(std::move(suppressions)),
        writes_model_(writes_model) {}

  ~StepContext() { end(); }

  void enter() {
    auto scope = std::make_unique<Scope>(*this);
    const py::gil_scoped_release unlocked;
    scope->step.begin("step");
    scope_ = std::move(scope);
  }

  void exit(const py::object& exception, const py::args&) {
    if (exception.is_none()) {
      const py::gil_scoped_release unlocked;
      scope_->step.finish();
    }
    end();
  }

 private:
  struct Scope {
    explicit Scope(const StepContext& of)
        : suppressed(*of.suppressions_), step(of.state_, of.scalers_, of.writes_model_) {}
    disable_casts shield;
    Suppressed suppressed;
    core::Step step;
  };

  void end() {
    const py::gil_scoped_release unlocked;
    scope_.reset();
  }

  std::shared_ptr<OptimizerState> state_;
  std::vector<LossScaler*> scalers_;
  std::shared_ptr<Suppressions> suppressions_;
  bool writes_model_;
  std::unique_ptr<Scope> scope_;  ///< while it is open
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

void finish(std::vector<std::shared_ptr<OptimizerState>> states, LossScaler& scaler,
            int64_t loss_id) {
  Backward backward(std::move(states), scaler, {loss_id});
  backward.take_grads();
  backward.finish();
}

void exit_backward(Backward& backward, const py::object& exception, const py::args&) {
  const bool raised = !exception.is_none();
  const py::gil_scoped_release unlocked;
  raised ? backward.cancel() : backward.finish();
}

at::Tensor clip_norm(const std::vector<std::shared_ptr<OptimizerState>>& states, double max_norm,
                     const std::vector<at::Tensor>& counted_elsewhere,
                     std::function<void(const at::Tensor&)> all_reduce_sum) {
  std::vector<OptimizerState*> clipped;
  for (const auto& state : states) clipped.push_back(state.get());
  core::RanksOfShards ranks{{}, std::move(all_reduce_sum)};
  for (const at::Tensor& param : counted_elsewhere) {
    ranks.counted_elsewhere.insert(param.unsafeGetTensorImpl());
  }
  return core::clip_grad_norm(clipped, max_norm, ranks);
}

std::unique_ptr<Backward> make_backward(Backward::States states, LossScaler& scaler,
                                        int64_t loss_id, bool delay_unscale,
                                        bool delay_overflow_check) {
  return std::make_unique<Backward>(
      std::move(states), scaler, Backward::Options{loss_id, delay_unscale, delay_overflow_check});
}

/// Whether an optimizer's groups, a list of dicts, hold what the state steps. Reads lists bypassing
/// __iter__.
bool holds(const OptimizerState& state, const py::list& groups) {
  size_t i = 0;
  for (const py::handle group : groups) {
    PyObject* const params = PyDict_GetItemString(group.ptr(), "params");
    if (params == nullptr || !PyList_Check(params)) return false;
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(params); ++k) {
      PyObject* const param = PyList_GET_ITEM(params, k);
      if (!is_tensor(param) || !state.steps_at(i++, THPVariable_Unpack(param))) return false;
    }
  }
  return i == state.params().size();
}

void overwrite_masters(const OptimizerState& state) {
  for (const auto& param : state.params()) param->overwrite_master();
}

void bind_stepped(StateClass& state) {
  state
      .def("holds", &holds, py::arg("param_groups"),
           "Whether an optimizer's groups hold what it steps, in that order.")
      .def(
          "add",
          [](OptimizerState& self, const std::string& function, const at::Tensor& param,
             const OptionalTensor& master, bool keeps_masters) {
            return self.add(function.c_str(), param, master.value_or(at::Tensor()), keeps_masters);
          },
          py::arg("function"), py::arg("param"), py::arg("master") = py::none(),
          py::arg("keeps_masters") = false,
          "Steps a parameter from now on. Returns what the groups are to hold for it: the master "
          "that it has, master, a new one if masters are kept and it has 16 bits, or itself. "
          "Raises ValueError, which names function, if another optimizer steps the master.")
      .def(
          "retain",
          [](OptimizerState& self, const std::string& function,
             const std::vector<at::Tensor>& held) { self.retain(function.c_str(), held); },
          py::arg("function"), py::arg("held"),
          "Steps only those from now on, of what it steps. Raises ValueError, which names "
          "function, "
          "for a tensor that comes twice.")
      .def(
          "let_go",
          [](OptimizerState& self, const std::vector<at::Tensor>& held) { self.let_go(held); },
          py::arg("held"), "Steps no longer what is not among those, which the groups hold.")
      .def("params", &OptimizerState::params, "In the order of the groups.")
      .def("model_params", &OptimizerState::model_params, "The model's tensors.")
      .def("master_params", &OptimizerState::master_params, "What it steps for them.")
      .def(
          "steps",
          [](const OptimizerState& self, const at::Tensor& tensor) {
            const auto param = core::param_of(tensor);
            return param != nullptr && self.steps(*param);
          },
          py::arg("tensor"), "Whether it steps a tensor of the model, or a master.")
      .def(
          "check_free",
          [](const OptimizerState& self, const std::string& function, const at::Tensor& tensor) {
            const auto param = core::param_of(tensor);
            if (param != nullptr) self.check_free(function.c_str(), *param);
          },
          py::arg("function"), py::arg("tensor"),
          "Raises ValueError, which names function, if another optimizer steps its master.")
      .def(
          "publish_masters",
          [](const OptimizerState& self) { core::publish_masters(self.params()); }, Unlocked(),
          "Copies masters that were written from outside to the model, where that was not written.")
      .def_property_readonly("has_masters", &OptimizerState::has_masters)
      .def("refresh", &OptimizerState::refresh, Unlocked(),
           "Synchronizes model and masters where one was written from outside; the model wins.")
      .def("overwrite_masters", &overwrite_masters, Unlocked(),
           "master = float(model), regardless of the version counters.")
      .def(
          "copy_to_model", [](const OptimizerState& self) { core::copy_to_model(self.params()); },
          Unlocked(), "model = master, rounded.")
      .def("adopt_data_writes", &OptimizerState::adopt_data_writes, Unlocked(),
           "From now on, steps adopt what was written to the model, or to masters, through .data.")
      .def("prepare_release", &OptimizerState::prepare_release, Unlocked(),
           "Makes the masters what the model holds, in float32. Raises RuntimeError in a backward.")
      .def("give_masters_back", &OptimizerState::give_masters_back, Unlocked(),
           "Gives the model's parameters their masters' memory: they become float32.");
}

void bind_fused(StateClass& state) {
  state
      .def_property("lazy", &OptimizerState::lazy, &OptimizerState::set_lazy,
                    "Whether backwards may only check grads, which a fused step then unscales.")
      .def(
          "factor", [](const OptimizerState& self) { return optional(self.factor()); },
          "What a fused step multiplies grads by that are only checked, a float32 scalar on the "
          "device; None: there are none.")
      .def("unscale", py::overload_cast<>(&OptimizerState::unscale), Unlocked(),
           "Unscales grads that are only checked.");
}

void bind_optimizer_state(py::module_& module) {
  StateClass state(module, "OptimizerState",
                   "What one optimizer steps, and the state that its next step depends on.");
  state.def(py::init<bool, std::shared_ptr<core::Observer>>(), py::arg("shows_grads") = true,
            py::arg("observer") = nullptr);
  bind_stepped(state);
  bind_fused(state);
  state
      .def_property_readonly(
          "warning", &OptimizerState::warning,
          "A warning about what the program may not have meant, found by the last step or "
          "zero_grad; \"\": nothing.")
      .def_property_readonly("grads_are_scaled", &OptimizerState::grads_are_scaled,
                             "Whether a backward is open, or its grads are still scaled.")
      .def(
          "found_inf", [](const OptimizerState& self) { return optional(self.found_inf()); },
          "float32 scalar, not 0 if the next step is to be skipped; None: it is not.")
      .def("has_overflowed", &OptimizerState::has_overflowed, Unlocked(),
           "Whether the next step is to be skipped. Waits for the device.")
      .def("clear_overflows", &OptimizerState::clear_overflows)
      .def("check_unscaled", &OptimizerState::check_unscaled, Unlocked(), py::arg("function"),
           "Discards grads that were zeroed or skipped. Raises RuntimeError while others are "
           "scaled.")
      .def("end_step", &OptimizerState::end_step, Unlocked(), py::arg("scalers"),
           "Ends a step, taken or skipped: drops the masters' grads.")
      .def("zero_grad", &zero_grad, py::arg("set_to_none"),
           "Like zero_grad, for grads that the optimizer's own does not reach.")
      .def("note_zeroed", &OptimizerState::note_zeroed, py::arg("model_params"),
           "After the model's zero_grad has zeroed the grads of those, which does not reach those "
           "that an open backward has set aside.");
}

}  // namespace

void bind_core(py::module_& module) {
  bind_optimizer_state(module);
  py::class_<Backward>(module, "Backward", kBackward)
      .def(py::init(&make_backward), py::keep_alive<1, 3>(), py::arg("states"), py::arg("scaler"),
           py::arg("loss_id") = 0, py::arg("delay_unscale") = false,
           py::arg("delay_overflow_check") = false)
      .def("scale", &Backward::scale, Unlocked(), py::arg("loss"),
           "The loss times the current scale.")
      .def("begin", [](py::object self) { return self; })
      .def("__enter__", &enter_backward)
      .def("__exit__", &exit_backward);
  py::class_<StepContext>(module, "Step", kStep)
      .def(py::init<std::shared_ptr<OptimizerState>, std::vector<LossScaler*>,
                    std::shared_ptr<Suppressions>, bool>(),
           py::keep_alive<1, 3>(), py::arg("state"), py::arg("scalers"), py::arg("suppressions"),
           py::arg("writes_model"))
      .def("__enter__", &StepContext::enter)
      .def("__exit__", &StepContext::exit);
  bind_context<Context<TemporaryItems, py::dict, py::dict>>(
      module, "TemporaryItems", "A context in which a dict has further items.")
      .def(py::init<py::dict, py::dict>(), py::arg("target"), py::arg("items"));
  module.def("finish", &finish, Unlocked(), py::arg("states"), py::arg("scaler"),
             py::arg("loss_id"),
             "Ends backwards that ran without a Backward, of a loss that the scaler's scale has "
             "scaled: unscales, checks and updates. Raises RuntimeError where grads are unscaled.");
  module.def("clip_grad_norm", &clip_norm, Unlocked(), py::arg("states"), py::arg("max_norm"),
             py::arg("counted_elsewhere") = std::vector<at::Tensor>(),
             py::arg("all_reduce_sum") = nullptr,
             "Scales the grads that some OptimizerStates step by so that their total norm is at "
             "most max_norm; returns the norm before clipping, a float32 scalar on the device. "
             "counted_elsewhere: parameters of whose grads another rank counts the norm; "
             "all_reduce_sum makes a float64 scalar the sum over all ranks.");
}

}  // namespace torchamp::python
