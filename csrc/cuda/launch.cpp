#include "cuda/launch.h"

#include <stdexcept>

#include "cuda/registry.h"

namespace torchamp::cuda {

void launch(Queue queue, Kernel kernel, uint32 blocks, int threads, const void* parameter) {
  Device& device = device_of(queue);
  const Module& module = device.module;
  if (module.backend == Backend::kAten) {
    throw std::runtime_error(name(kernel) + ": CUDA device " + std::to_string(queue.device) +
                             " has no kernels: " + module.reason);
  }
  void* const function = function_of(device, kernel);
  const Driver& cuda = driver();
  const ContextScope current(cuda, module.context->handle());
  void* parameters[] = {const_cast<void*>(parameter)};  // which the driver only reads
  const int code = cuda.launch_kernel(function, blocks, 1, 1, static_cast<unsigned>(threads), 1, 1,
                                      0, queue.stream, parameters, nullptr);
  if (code != 0) require(cuda, code, "launching " + name(kernel));
}

}  // namespace torchamp::cuda
