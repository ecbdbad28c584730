#include <torchamp/ops.h>

#include "python/bindings.h"
#include "python/tensor_list.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using GilReleased = py::gil_scoped_release;

constexpr const char* kScale = R"(outputs = inputs * scale.

Args:
    inputs, outputs: lists of floating tensors, None skipped; equal sizes at equal positions, any
        dtypes and strides. They may be the same tensors.
    scale: float.
    found_inf: float32 of one element, set to 1 by a non-finite input and by a 16-bit output that
        overflows; never cleared.
    found_inf_per_tensor: uint8, one element per position, or None.

Raises:
    TypeError: for another dtype or layout, and for what is not a tensor.
    RuntimeError: where lengths, sizes or devices differ.)";

constexpr const char* kUnscale = R"(master_grads = scaled_grads * inv_scale, or += with accumulate.

Args:
    scaled_grads, master_grads: lists of floating tensors, None skipped; equal sizes at equal
        positions, any dtypes and strides. They may be the same tensors.
    inv_scale: float32 of one element, on the tensors' device.
    found_inf: float32 of one element, set to 1 by a non-finite scaled grad and by a 16-bit master
        grad that overflows; never cleared. What master_grads held before is not checked.
    found_inf_per_tensor: uint8, one element per position, or None.

Raises:
    TypeError: for another dtype or layout, and for what is not a tensor.
    RuntimeError: where lengths, sizes or devices differ.)";

constexpr const char* kAxpby = R"(outputs = a * x + b * y.

Args:
    x, y, outputs: lists of floating tensors, None skipped; equal sizes at equal positions, any
        dtypes and strides. outputs may be x or y.
    a, b: floats.
    found_inf: float32 of one element, set to 1 by a non-finite value in what `checked` names, and
        by a 16-bit output that overflows; never cleared.
    checked: Check.X, Check.Y or Check.BOTH.
    found_inf_per_tensor: uint8, one element per position, or None.

Raises:
    TypeError: for another dtype or layout, and for what is not a tensor.
    RuntimeError: where lengths, sizes or devices differ.)";

constexpr const char* kCheck = R"(Sets found_inf to 1 if any element of `tensors` is not finite.

Args:
    tensors: list of floating tensors, None skipped.
    found_inf: float32 of one element, never cleared.
    found_inf_per_tensor: uint8, one element per position, or None.

Raises:
    TypeError: for another dtype or layout, and for what is not a tensor.
    RuntimeError: where devices differ.)";

constexpr const char* kCheckL2norm = R"(check() and the norm of l2norm() in one pass.

Arguments and errors are those of check().

Returns:
    A float32 scalar on the device.)";

constexpr const char* kL2norm = R"(The Euclidean norm of all elements.

Squares are formed in float32. The result does not depend on the number of threads.

Args:
    tensors: list of floating tensors, None skipped.
    per_tensor: whether to compute each position's norm too.

Returns:
    (norm, norms): a float32 scalar, and float32 of the list's length (0 for None and empty
    tensors) or None without per_tensor.

Raises:
    TypeError: for another dtype or layout, and for what is not a tensor.
    RuntimeError: where devices differ.)";

constexpr const char* kCopyCast = R"(model_params = master_params, rounded to each one's dtype.

Args:
    master_params, model_params: lists of floating tensors, None skipped; equal sizes at equal
        positions, any dtypes and strides.

Raises:
    TypeError: for another dtype or layout, and for what is not a tensor.
    RuntimeError: where lengths, sizes or devices differ.)";

constexpr const char* kUpdateScale = R"(One move of dynamic loss scaling, after a backward.

Backs loss_scale off if found_inf is not 0, else counts a clean backward and grows the scale after
rule.growth_interval of them.

Args:
    loss_scale: float32 of one element.
    growth_tracker, hysteresis_tracker: int32 of one element.
    found_inf: float32 of one element.
    rule: ScaleRule, by default apex.amp's with a floor of 2**-10: after an overflow at the floor
        the scale grows with every clean backward, until the third overflow or max_scale.

Raises:
    TypeError: for another dtype.
    RuntimeError: for another number of elements, and where devices differ.)";

void scale(const py::object& inputs, const py::object& outputs, double factor,
           const Tensor& found_inf, const OptionalTensor& per_tensor) {
  const auto in = tensor_list("scale", "inputs", inputs);
  const auto out = tensor_list("scale", "outputs", outputs);
  const GilReleased unlocked;
  ops::scale(in, out, factor, found_inf, per_tensor);
}

void unscale(const py::object& scaled_grads, const py::object& master_grads,
             const Tensor& inv_scale, const Tensor& found_inf, bool accumulate,
             const OptionalTensor& per_tensor) {
  const auto scaled = tensor_list("unscale", "scaled_grads", scaled_grads);
  const auto master = tensor_list("unscale", "master_grads", master_grads);
  const GilReleased unlocked;
  ops::unscale(scaled, master, inv_scale, found_inf, accumulate, per_tensor);
}

void axpby(double a, const py::object& x, double b, const py::object& y, const py::object& outputs,
           const Tensor& found_inf, ops::Check checked, const OptionalTensor& per_tensor) {
  const auto xs = tensor_list("axpby", "x", x);
  const auto ys = tensor_list("axpby", "y", y);
  const auto out = tensor_list("axpby", "outputs", outputs);
  const GilReleased unlocked;
  ops::axpby(a, xs, b, ys, out, found_inf, checked, per_tensor);
}

void check(const py::object& tensors, const Tensor& found_inf, const OptionalTensor& per_tensor) {
  const auto list = tensor_list("check", "tensors", tensors);
  const GilReleased unlocked;
  ops::check(list, found_inf, per_tensor);
}

Tensor check_l2norm(const py::object& tensors, const Tensor& found_inf,
                    const OptionalTensor& per_tensor) {
  const auto list = tensor_list("check_l2norm", "tensors", tensors);
  const GilReleased unlocked;
  return ops::check_l2norm(list, found_inf, per_tensor);
}

std::tuple<Tensor, OptionalTensor> l2norm(const py::object& tensors, bool per_tensor) {
  const auto list = tensor_list("l2norm", "tensors", tensors);
  const GilReleased unlocked;
  auto [norm, norms] = ops::l2norm(list, per_tensor);
  return {norm, norms.defined() ? OptionalTensor(norms) : std::nullopt};
}

void copy_cast(const py::object& master_params, const py::object& model_params) {
  const auto masters = tensor_list("copy_cast", "master_params", master_params);
  const auto models = tensor_list("copy_cast", "model_params", model_params);
  const GilReleased unlocked;
  ops::copy_cast(masters, models);
}

void update_scale(const Tensor& loss_scale, const Tensor& growth_tracker,
                  const Tensor& hysteresis_tracker, const Tensor& found_inf,
                  const ops::ScaleRule& rule) {
  const GilReleased unlocked;
  ops::update_scale(loss_scale, growth_tracker, hysteresis_tracker, found_inf, rule);
}

ops::ScaleRule make_rule(double growth_factor, double backoff_factor, int64_t growth_interval,
                         double min_scale, double max_scale, int64_t hysteresis) {
  return {growth_factor, backoff_factor, growth_interval, min_scale, max_scale, hysteresis};
}

void bind_types(py::module_& ops_module) {
  py::enum_<ops::Check>(ops_module, "Check", "Which inputs of axpby decide found_inf.")
      .value("X", ops::Check::kX)
      .value("Y", ops::Check::kY)
      .value("BOTH", ops::Check::kBoth);
  const ops::ScaleRule rule;
  py::class_<ops::ScaleRule>(ops_module, "ScaleRule", "The update rule of dynamic loss scaling.")
      .def(py::init(&make_rule), py::kw_only(), py::arg("growth_factor") = rule.growth_factor,
           py::arg("backoff_factor") = rule.backoff_factor,
           py::arg("growth_interval") = rule.growth_interval, py::arg("min_scale") = rule.min_scale,
           py::arg("max_scale") = rule.max_scale, py::arg("hysteresis") = rule.hysteresis)
      .def_readwrite("growth_factor", &ops::ScaleRule::growth_factor,
                     "The scale is multiplied by this when it grows.")
      .def_readwrite("backoff_factor", &ops::ScaleRule::backoff_factor,
                     "The scale is multiplied by this when it backs off.")
      .def_readwrite("growth_interval", &ops::ScaleRule::growth_interval,
                     "Clean backwards in a row until the scale grows.")
      .def_readwrite("min_scale", &ops::ScaleRule::min_scale,
                     "The scale never goes below this, nor below the smallest normal float32.")
      .def_readwrite("max_scale", &ops::ScaleRule::max_scale, "The scale never goes above this.")
      .def_readwrite("hysteresis", &ops::ScaleRule::hysteresis,
                     "The scale backs off from this many overflows on, counted since the last "
                     "clean backward.");
}

void bind_functions(py::module_& m) {
  const auto per_tensor = py::arg("found_inf_per_tensor") = py::none();
  m.def("scale", &scale, kScale, py::arg("inputs"), py::arg("outputs"), py::arg("scale"),
        py::arg("found_inf"), per_tensor);
  m.def("unscale", &unscale, kUnscale, py::arg("scaled_grads"), py::arg("master_grads"),
        py::arg("inv_scale"), py::arg("found_inf"), py::arg("accumulate") = false, per_tensor);
  m.def("axpby", &axpby, kAxpby, py::arg("a"), py::arg("x"), py::arg("b"), py::arg("y"),
        py::arg("outputs"), py::arg("found_inf"), py::arg("checked") = ops::Check::kBoth,
        per_tensor);
  m.def("check", &check, kCheck, py::arg("tensors"), py::arg("found_inf"), per_tensor);
  m.def("check_l2norm", &check_l2norm, kCheckL2norm, py::arg("tensors"), py::arg("found_inf"),
        per_tensor);
  m.def("l2norm", &l2norm, kL2norm, py::arg("tensors"), py::arg("per_tensor") = false);
  m.def("copy_cast", &copy_cast, kCopyCast, py::arg("master_params"), py::arg("model_params"));
  m.def("update_scale", &update_scale, kUpdateScale, py::arg("loss_scale"),
        py::arg("growth_tracker"), py::arg("hysteresis_tracker"), py::arg("found_inf"),
        py::arg("rule") = ops::ScaleRule());
}

}  // namespace

void bind_ops(py::module_& module) {
  auto ops_module = module.def_submodule("ops", "Fused operations on lists of tensors.");
  bind_types(ops_module);
  bind_functions(ops_module);
}

}  // namespace torchamp::python
