#include <tuple>

#include "float8/choice.h"
#include "float8/linear.h"
#include "python/bindings.h"
#include "python/context.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

using float8::Float8Forward;
using float8::Weights;

/// The members of a Candidate, and those of Candidates.
using Matrix = std::tuple<std::string, at::Tensor, bool, bool>;
using Model = std::tuple<std::vector<std::string>, std::vector<Matrix>, int64_t>;

std::pair<Weights::Named, std::string> choose(const std::vector<Model>& models,
                                              const std::vector<std::string>& names) {
  std::vector<float8::Candidates> candidates;
  for (const auto& [modules, matrices, num_params] : models) {
    candidates.push_back({modules, {}, num_params});
    for (const auto& [name, weight, is_embedding, is_kept] : matrices) {
      candidates.back().matrices.push_back({name, weight, is_embedding, is_kept});
    }
  }
  auto choice = float8::choose(candidates, names);
  return {std::move(choice.linears), std::move(choice.text)};
}

}  // namespace

void bind_float8(py::module_& module) {
  module.def("choose_for_float8", &choose, py::arg("models"), py::arg("names"),
             "Of each model the names of modules, the matrices and the number of elements; of each "
             "matrix a name, whether the module of that name is an embedding, and whether it stays "
             "in float32. Returns the weights that initialize puts into float8 by the names of "
             "their linears, and the line that it logs. Raises ValueError where there are none.");
  py::class_<Weights, Weights::Open>(module, "Float8",
                                     "Products in float8 from now until closed, in this thread.")
      .def(py::init([](const Weights::Named& linears, bool follows_casts, bool tells) {
             if (tells) float8::tell_of_next_graph();
             return Weights::open(linears, follows_casts);
           }),
           py::arg("linears"), py::arg("follows_casts"), py::arg("tells"))
      .def("close", &Weights::close)
      .def("forget_copies", &Weights::forget_copies)
      .def("products", &Weights::products,
           "The linears that have been called: the name, the weight, and the last input's rows.")
      .def(
          "nonfinite", &Weights::nonfinite, Unlocked(),
          "Which tensor of the last products was the first that was not finite; \"\" if all were.");
  bind_context<Context<Float8Forward, Weights&>>(
      module, "Float8Forward",
      "A context around a forward of its models, in any thread; at O5 a ShieldFromAutocast, too.")
      .def(py::init<Weights&>(), py::arg("float8"), py::keep_alive<1, 2>());
  module.def(
      "float8_counts",
      [] {
        const float8::Counts counts = float8::counts();
        return std::make_pair(counts.products, counts.casts);
      },
      "The products that this process has computed, and the matrices that it has cast for them.");
}

}  // namespace torchamp::python
