#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <tuple>

namespace torchamp::python {

/// A scope of C++ as a context manager; it may be entered again after it was left. No signal of
/// Python's comes between the scope's beginning and the context's, or between their ends.
template <class Scope, class... Args>
class Context {
 public:
  explicit Context(Args... args) : args_(args...) {}

  void enter() {
    std::apply([this](auto&... args) { scope_.emplace(args...); }, args_);
  }
  void exit(const pybind11::args&) { scope_.reset(); }

 private:
  std::tuple<Args...> args_;
  std::optional<Scope> scope_;
};

template <class Scope>
pybind11::class_<Scope> bind_context(pybind11::module_& module, const char* name, const char* doc) {
  return pybind11::class_<Scope>(module, name, doc)
      .def("__enter__", &Scope::enter)
      .def("__exit__", &Scope::exit);
}

}  // namespace torchamp::python
