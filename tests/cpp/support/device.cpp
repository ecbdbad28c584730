#include "device.h"

#include <ATen/Context.h>

namespace torchamp {

std::vector<at::Device> devices() {
  std::vector<at::Device> found = {at::kCPU};
  if (at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0) {
    found.emplace_back(at::kCUDA, 0);
  }
  return found;
}

}  // namespace torchamp
