#include <torchamp/build_info.h>

#include "doctor/doctor.h"
#include "python/bindings.h"

namespace torchamp::python {
namespace {

pybind11::dict build_info_dict() {
  const BuildInfo& info = build_info();
  pybind11::dict result;
  result["version"] = info.version;
  result["torch_version"] = info.torch_version;
  result["compiler"] = info.compiler;
  result["cxx_standard"] = info.cxx_standard;
  result["fatbin"] = info.fatbin;
  result["nvcc"] = info.nvcc;
  result["kernel_cache"] = kernel_cache();
  return result;
}

pybind11::tuple backend_tuple(const std::string& device) {
  const Backend found = backend(c10::Device(device));
  return pybind11::make_tuple(found.name, found.reason);
}

pybind11::list findings() {
  pybind11::list result;
  for (const Diagnostic& each : examine()) {
    result.append(pybind11::make_tuple(each.subject, each.found, each.status, each.remedy));
  }
  return result;
}

}  // namespace

void bind_build_info(pybind11::module_& module) {
  module.def("build_info", &build_info_dict);
  module.def("backend", &backend_tuple, pybind11::arg("device"));
  module.def("examine", &findings);
}

}  // namespace torchamp::python
