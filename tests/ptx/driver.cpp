// The driver of the kernels' tests: the loader's, on libcuda.so.1 of this folder.
#include "driver.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "cuda/embedded.h"
#include "libcuda.h"

namespace torchamp::cuda {

/// nvcc's PTX, as a fatbin that holds nothing else; none where TORCHAMP_PTX is not set.
EmbeddedImage embedded_fatbin() {
  static const std::string text = [] {
    const char* const path = std::getenv("TORCHAMP_PTX");
    std::ostringstream read;
    if (path != nullptr) read << std::ifstream(path).rdbuf();
    return read.str();
  }();
  return {reinterpret_cast<const unsigned char*>(text.c_str()), text.size()};
}

}  // namespace torchamp::cuda

namespace kernel_tests {
namespace {

using torchamp::cuda::Driver;

const Driver* real = nullptr;
std::map<void*, std::string> names;
std::string last_kernel;

/// The real one, which also names the last kernel.
Driver make_driver() {
  real = &torchamp::cuda::driver();
  Driver driver = *real;
  driver.module_function = [](void** function, void* module, const char* name) {
    const int code = real->module_function(function, module, name);
    if (code == 0) names[*function] = name;
    return code;
  };
  driver.launch_kernel = [](void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, void* stream, void** parameters, void** extra) {
    last_kernel = names[function];
    return real->launch_kernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                               shared_bytes, stream, parameters, extra);
  };
  return driver;
}

}  // namespace

const Driver& driver() {
  static const Driver driver = make_driver();
  return driver;
}

int launches() {
  return static_cast<int>(ptxLaunches());
}

std::string last_launched() {
  return last_kernel;
}

}  // namespace kernel_tests
