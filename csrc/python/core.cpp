#include <pybind11/functional.h>
#include <torchamp/detail/backward.h>
#include <torchamp/detail/clip.h>
#include <torchamp/detail/open_autocast.h>

#include <utility>

#include "core/late_report.h"
#include "core/skip_messages.h"
#include "python/bindings.h"
#include "python/context.h"
#include "python/suppressions.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using core::Backward;
using core::Masters;
using core::OptimizerState;
using OptionalTensor = std::optional<at::Tensor>;
using Unlocked = py::call_guard<py::gil_scoped_release>;

constexpr const char* kBackward = R"(One backward of one loss, for some optimizers, as a context.

It begins by setting the grads of earlier backwards aside, and ends by unscaling, checking and
updating, or by restoring those grads: after an exception, or when it is dropped. It gives what
begin() returns: itself, or what a subclass makes it.)";

constexpr const char* kStep = R"(One step of an optimizer, as a context.

Within it O1 casts nothing, and accesses to the masters do not count. It begins by synchronizing
masters and model. It ends by copying the masters to the model, also after an exception, which may
have come after some were stepped, unless the optimizer has written the model itself
(writes_model). Raises RuntimeError while grads are scaled.)";

OptionalTensor found_inf(const OptimizerState& state) {
  const at::Tensor found = state.found_inf();
  return found.defined() ? OptionalTensor(found) : std::nullopt;
}

/// Grads that have an object of Python's are freed under the GIL, which costs more to take for
/// each.
void zero_grad(OptimizerState& state, bool set_to_none) {
  std::optional<py::gil_scoped_release> unlocked;
  if (!set_to_none) unlocked.emplace();
  state.zero_grad(set_to_none);
}

py::tuple telemetry(const OptimizerState& state) {
  const Telemetry& known = state.late_report().known();
  return py::make_tuple(known.steps, known.skipped_steps, known.stepped,
                        py::tuple(py::cast(known.loss_scales)), known.underflowed_steps,
                        known.underflowed);
}

std::pair<std::vector<SkippedStep>, std::string> flush_report(const OptimizerState& state) {
  std::vector<SkippedStep> skipped = state.late_report().flush();
  const auto underflowed = state.late_report().take_underflow();
  return {std::move(skipped), underflowed ? message_of(*underflowed) : ""};
}

/// A step of Python's; the model is synchronized with the masters even if the context is dropped.
class Step {
 public:
  Step(std::shared_ptr<OptimizerState> state, std::vector<LossScaler*> scalers,
       std::shared_ptr<Suppressions> suppressions, bool adopts_data_writes, bool writes_model)
      : state_(std::move(state)),
        scalers_(std::move(scalers)),
        suppressions_(std::move(suppressions)),
        adopts_data_writes_(adopts_data_writes),
        writes_model_(writes_model) {}

  ~Step() { abandon(); }

  void enter() {
    auto scope = std::make_unique<Scope>(*suppressions_);
    const py::gil_scoped_release unlocked;
    state_->begin_step("step", adopts_data_writes_);
    scope_ = std::move(scope);
  }

  void exit(const py::object& exception, const py::args&) {
    if (!exception.is_none()) return abandon();
    const auto ending = std::move(scope_);
    const py::gil_scoped_release unlocked;
    if (!writes_model_) state_->weights().copy_to_model();
    state_->end_step(scalers_);
  }

 private:
  struct Scope {
    explicit Scope(Suppressions& suppressions) : suppressed(suppressions) {}
    ShieldFromAutocast shield;
    Suppressed suppressed;
  };

  void abandon() {
    const auto ending = std::move(scope_);
    const py::gil_scoped_release unlocked;
    if (ending != nullptr && !writes_model_) state_->weights().copy_to_model();
  }

  std::shared_ptr<OptimizerState> state_;
  std::vector<LossScaler*> scalers_;
  std::shared_ptr<Suppressions> suppressions_;
  bool adopts_data_writes_, writes_model_;
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

std::unique_ptr<Backward> make_backward(
    std::vector<std::shared_ptr<OptimizerState>> states, LossScaler& scaler, int64_t loss_id,
    bool delay_unscale, bool delay_overflow_check,
    const std::vector<std::shared_ptr<OptimizerState>>& others) {
  return std::make_unique<Backward>(std::move(states), scaler,
                                    Backward::Options{loss_id, delay_unscale, delay_overflow_check},
                                    others);
}

void bind_optimizer_state(py::module_& module) {
  py::class_<OptimizerState, std::shared_ptr<OptimizerState>>(
      module, "OptimizerState",
      "One optimizer's masters, and the state that its next step depends on.")
      .def(py::init<std::shared_ptr<Masters>>(), py::arg("masters"))
      .def_property_readonly(
          "doubt", &OptimizerState::doubt,
          "What the program may not have meant, found by the last step; \"\": nothing.")
      .def("add_param", &OptimizerState::add_param, py::arg("param"),
           "Records that the optimizer steps a master, or a parameter without one.")
      .def_property_readonly("grads_are_scaled", &OptimizerState::grads_are_scaled,
                             "Whether a backward is open, or its grads are still scaled.")
      .def("found_inf", &found_inf,
           "float32 scalar, not 0 if the next step is to be skipped; None: it is not.")
      .def("has_overflowed", &OptimizerState::has_overflowed, Unlocked(),
           "Whether the next step is to be skipped. Waits for the device.")
      .def("clear_overflows", &OptimizerState::clear_overflows)
      .def("check_unscaled", &OptimizerState::check_unscaled, Unlocked(), py::arg("function"),
           "Discards grads that were zeroed or skipped. Raises RuntimeError while others are "
           "scaled.")
      .def("zero_grad", &zero_grad, py::arg("set_to_none"),
           "Like zero_grad, for grads that the optimizer's own does not reach.")
      .def_property_readonly("is_in_backward", &OptimizerState::is_in_backward,
                             "Whether a backward is open.")
      .def(
          "drop_set_aside", &OptimizerState::drop_set_aside, py::arg("model_params"),
          "Within a backward: after the model's grads have become None, which does not reach those "
          "that the backward has set aside.")
      .def("flush_report", &flush_report,
           "Counts the steps that the device has reported. Returns the skipped ones, and the line "
           "that reports the first that underflowed, once; \"\": none.")
      .def("telemetry", &telemetry,
           "(steps, skipped_steps, stepped, loss_scales, underflowed_steps, underflowed) since "
           "the first call.");
}

}  // namespace

void bind_core(py::module_& module) {
  bind_optimizer_state(module);
  py::class_<Backward>(module, "Backward", kBackward)
      .def(py::init(&make_backward), py::keep_alive<1, 3>(), py::arg("states"), py::arg("scaler"),
           py::arg("loss_id") = 0, py::arg("delay_unscale") = false,
           py::arg("delay_overflow_check") = false,
           py::arg("others") = std::vector<std::shared_ptr<OptimizerState>>())
      .def("scale", &Backward::scale, Unlocked(), py::arg("loss"),
           "The loss times the current scale.")
      .def("begin", [](py::object self) { return self; })
      .def("__enter__", &enter_backward)
      .def("__exit__", &exit_backward);
  py::class_<Step>(module, "Step", kStep)
      .def(py::init<std::shared_ptr<OptimizerState>, std::vector<LossScaler*>,
                    std::shared_ptr<Suppressions>, bool, bool>(),
           py::keep_alive<1, 3>(), py::arg("state"), py::arg("scalers"), py::arg("suppressions"),
           py::arg("adopts_data_writes"), py::arg("writes_model"))
      .def("__enter__", &Step::enter)
      .def("__exit__", &Step::exit);
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
