#include <torchamp/ops.h>

#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings.h"
#include "python/tensor_list.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using at::Tensor;
using at::TensorList;

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

constexpr const char* kFloat8Scales = R"(The powers of two that bring each tensor within float8.

Each is 2**ceil(log2(m / M)) of the tensor's largest magnitude m and the largest number M of `dtype`;
2**-126 where that is less; 1 for tensors of zeros, for empty ones and None; NaN where an element is
not finite.

Args:
    tensors: list of float32, float16 and bfloat16 tensors, None skipped; any sizes and strides.
    dtype: torch.float8_e4m3fn, up to 448, or torch.float8_e5m2, up to 57344.

Returns:
    float32 of the list's length, on the tensors' device.

Raises:
    TypeError: for another dtype or layout, and for what is not a tensor.
    RuntimeError: where devices differ.)";

constexpr const char* kFloat8Cast = R"(Each matrix, divided by its scale, in float8.

Rounds to nearest even. What is beyond the largest number of `dtype` becomes that number; NaN stays
NaN.

Args:
    tensors: list of float32, float16 and bfloat16 tensors of two dimensions, [M, K]; any strides.
    scales: float32, one element per tensor: powers of two, as those of float8_scales(), or NaN.
    dtype: torch.float8_e4m3fn or torch.float8_e5m2.
    plain: whether to return the matrices as they are.
    transposed: whether to return them transposed.

Returns:
    (plain, transposed): contiguous tensors of `dtype`, [M, K], and [K, M rounded up to a multiple of
    16], padded with zeros. What is not asked for is an empty list.

Raises:
    TypeError: for another dtype or layout, for None, and for what is not a tensor.
    RuntimeError: for other dimensions or another number of scales, and where devices differ.)";

constexpr const char* kUpdateScale = R"(One move of dynamic loss scaling, after a backward.

Backs loss_scale off if found_inf is not 0, else counts a clean backward and grows the scale after
rule.growth_interval of them.

Args:
    loss_scale: float32 of one element.
    growth_tracker: int32 of one element.
    found_inf: float32 of one element.
    rule: ScaleRule, by default apex.amp's with a floor of 2**-10: after an overflow at the floor
        the scale grows with every clean backward, until the third overflow or max_scale.

Raises:
    TypeError: for another dtype.
    RuntimeError: for another number of elements, and where devices differ.)";

/// An op's argument: what Python gives, and how it is taken.
template <class T>
struct Argument {
  using Given = std::decay_t<T>;
  static const Given& take(const char*, const char*, const Given& given) { return given; }
};

template <>
struct Argument<TensorList> {
  using Given = py::object;
  static auto take(const char* op, const char* name, const py::object& given) {
    return tensor_list(op, name, given);
  }
};

void add_name(std::vector<const char*>& names, const py::arg& named) {
  names.push_back(named.name);
}
void add_name(std::vector<const char*>&, const py::kw_only&) {}

/// Binds an op, during which other threads run.
template <class Result, class... Args, size_t... I, class... Names>
void bind_op(py::module_& m, const char* name, Result (*op)(Args...), const char* doc,
             std::index_sequence<I...>, const Names&... named) {
  std::vector<const char*> names;
  (add_name(names, named), ...);
  m.def(
      name,
      [=](const typename Argument<Args>::Given&... given) {
        const std::tuple taken{Argument<Args>::take(name, names[I], given)...};
        const py::gil_scoped_release unlocked;
        return op(std::get<I>(taken)...);
      },
      doc, named...);
}

template <class Result, class... Args, class... Names>
void bind_op(py::module_& m, const char* name, Result (*op)(Args...), const char* doc,
             const Names&... named) {
  bind_op(m, name, op, doc, std::index_sequence_for<Args...>(), named...);
}

std::tuple<Tensor, Tensor> l2norm(TensorList tensors, bool per_tensor) {
  return ops::l2norm(tensors, per_tensor);
}

ops::ScaleRule make_rule(double growth_factor, double backoff_factor, int64_t growth_interval,
                         double min_scale, double max_scale) {
  return {growth_factor, backoff_factor, growth_interval, min_scale, max_scale};
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
           py::arg("max_scale") = rule.max_scale)
      .def_readwrite("growth_factor", &ops::ScaleRule::growth_factor,
                     "The scale is multiplied by this when it grows.")
      .def_readwrite("backoff_factor", &ops::ScaleRule::backoff_factor,
                     "The scale is multiplied by this when it backs off.")
      .def_readwrite("growth_interval", &ops::ScaleRule::growth_interval,
                     "Clean backwards in a row until the scale grows.")
      .def_readwrite("min_scale", &ops::ScaleRule::min_scale,
                     "The scale never goes below this, nor below the smallest normal float32.")
      .def_readwrite("max_scale", &ops::ScaleRule::max_scale, "The scale never goes above this.");
}

void bind_functions(py::module_& m) {
  const auto per_tensor = py::arg("found_inf_per_tensor") = py::none();
  bind_op(m, "scale", ops::scale, kScale, py::arg("inputs"), py::arg("outputs"), py::arg("scale"),
          py::arg("found_inf"), per_tensor);
  bind_op(m, "unscale", ops::unscale, kUnscale, py::arg("scaled_grads"), py::arg("master_grads"),
          py::arg("inv_scale"), py::arg("found_inf"), py::arg("accumulate") = false, per_tensor);
  bind_op(m, "axpby", ops::axpby, kAxpby, py::arg("a"), py::arg("x"), py::arg("b"), py::arg("y"),
          py::arg("outputs"), py::arg("found_inf"), py::arg("checked") = ops::Check::kBoth,
          per_tensor);
  bind_op(m, "check", ops::check, kCheck, py::arg("tensors"), py::arg("found_inf"), per_tensor);
  bind_op(m, "check_l2norm", ops::check_l2norm, kCheckL2norm, py::arg("tensors"),
          py::arg("found_inf"), per_tensor);
  bind_op(m, "l2norm", l2norm, kL2norm, py::arg("tensors"), py::arg("per_tensor") = false);
  bind_op(m, "copy_cast", ops::copy_cast, kCopyCast, py::arg("master_params"),
          py::arg("model_params"));
  bind_op(m, "float8_scales", ops::float8_scales, kFloat8Scales, py::arg("tensors"), py::kw_only(),
          py::arg("dtype"));
  bind_op(m, "float8_cast", ops::float8_cast, kFloat8Cast, py::arg("tensors"), py::arg("scales"),
          py::kw_only(), py::arg("dtype"), py::arg("plain") = true, py::arg("transposed") = true);
  bind_op(m, "update_scale", ops::update_scale, kUpdateScale, py::arg("loss_scale"),
          py::arg("growth_tracker"), py::arg("found_inf"), py::arg("rule") = ops::ScaleRule());
}

}  // namespace

void bind_ops(py::module_& module) {
  auto ops_module = module.def_submodule("ops", "Fused operations on lists of tensors.");
  bind_types(ops_module);
  bind_functions(ops_module);
}

}  // namespace torchamp::python
