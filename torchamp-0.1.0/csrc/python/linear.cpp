#include <torchamp/linear.h>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

constexpr const char* kLinear =
    R"(torch.nn.functional.linear whose backward accumulates the weight's grad in float32.

input: [*, in_features]. weight: [out_features, in_features]. bias: [out_features] or None. Floating
dtypes, the same for all except under autocast. Returns [*, out_features]. weight.grad is float32
afterwards (float64 for float64), written by the GEMM itself: hooks on the weight do not run, and
torch.autograd.grad does not return it. Raises TypeError (input), RuntimeError (sizes).)";

at::Tensor linear_of(const at::Tensor& input, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias) {
  return linear(input, weight, bias.value_or(at::Tensor()));
}

}  // namespace

void bind_linear(pybind11::module_& module) {
  module.def("linear", &linear_of, kLinear, pybind11::arg("input"), pybind11::arg("weight"),
             pybind11::arg("bias") = pybind11::none(),
             pybind11::call_guard<pybind11::gil_scoped_release>());
}

}  // namespace torchamp::python
