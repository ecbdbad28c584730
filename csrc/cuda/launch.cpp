#include "cuda/launch.h"

#include <stdexcept>

#include "cuda/registry.h"

namespace torchamp::cuda {

void launch(Queue queue, Kernel kernel, uint32 blocks, const void* parameter) {
  Device& device = device_of(queue);
  const Module& module = device.module;
  if (module.rung == Rung::kAten) {
    throw std::runtime_error(std::string(name(kernel)) + ": CUDA device " +
                             std::to_string(queue.device) + " has no kernels: " + module.reason);
  }
  void* const function = function_of(device, kernel);
  const Driver& cuda = driver();
  const ContextScope current(cuda, module.context);
  void* parameters[] = {const_cast<void*>(parameter)};  // which the driver only reads
  require(cuda,
          cuda.launch_kernel(function, blocks, 1, 1, kThreads, 1, 1, 0, queue.stream, parameters,
                             nullptr),
          std::string("launching ") + name(kernel));
}

}  // namespace torchamp::cuda
