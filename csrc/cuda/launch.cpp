#include "cuda/launch.h"

#include <stdexcept>

#include "cuda/registry.h"

namespace torchamp::cuda {
namespace {

struct Start {
  void* function;
  unsigned blocks;
  unsigned threads;
  void* stream;
};

/// From this compute capability on, kernels wait for the previous one themselves.
constexpr int kWaits = 90;

int start(const Driver& cuda, const Module& module, const Start& start, void** parameters) {
  const bool depends = tuning().dependent_launch != 0 && module.capability >= kWaits;
  if (!depends || cuda.launch_kernel_ex == nullptr) {
    return cuda.launch_kernel(start.function, start.blocks, 1, 1, start.threads, 1, 1, 0,
                              start.stream, parameters, nullptr);
  }
  LaunchAttribute attribute{LaunchAttribute::kProgrammaticStreamSerialization, 1, {}};
  const LaunchConfig config{start.blocks, 1,          1, start.threads, 1, 1, 0,
                            start.stream, &attribute, 1};
  return cuda.launch_kernel_ex(&config, start.function, parameters, nullptr);
}

}  // namespace

void launch(Queue queue, Kernel kernel, uint32 blocks, int threads, const void* parameter) {
  Device& device = device_of(queue);
  const Module& module = device.module;
  if (module.backend == Backend::kAten) {
    throw std::runtime_error(std::string(name(kernel)) + ": CUDA device " +
                             std::to_string(queue.device) + " has no kernels: " + module.reason);
  }
  void* const function = function_of(device, kernel);
  const Driver& cuda = driver();
  const ContextScope current(cuda, module.context->handle());
  void* parameters[] = {const_cast<void*>(parameter)};  // which the driver only reads
  const Start started{function, blocks, static_cast<unsigned>(threads), queue.stream};
  require(cuda, start(cuda, module, started, parameters), std::string("launching ") + name(kernel));
}

}  // namespace torchamp::cuda
