#include "ops/device_kernels.h"

#include <torchamp/logging.h>

#include <mutex>
#include <string>
#include <unordered_set>

#include "cuda/registry.h"

namespace torchamp {
namespace {

/// Whether this is the first call for the device.
bool is_first(int device) {
  static std::mutex mutex;
  static auto& known = *new std::unordered_set<int>;
  const std::lock_guard<std::mutex> lock(mutex);
  return known.insert(device).second;
}

void warn_of_aten(int device) {
  std::string reason = cuda::backend_reason(device);
  for (size_t end; (end = reason.find('\n')) != std::string::npos;) reason.replace(end, 1, "; ");
  log_message(LogLevel::kWarning,
              "ops: expected kernels for CUDA device " + std::to_string(device) +
                  ", got none, so torch's own ops run, which take longer (" + reason +
                  "); TORCHAMP_KERNELS=aten runs them without this warning");
}

}  // namespace

bool has_kernels(at::Device device) {
  if (!device.is_cuda()) return device.is_cpu() && !cuda::forced_aten();
  const int index = device.index();
  if (cuda::backend(index) != cuda::Backend::kAten) return true;
  if (cuda::compute_capability(index) > 0 && is_first(index)) warn_of_aten(index);
  return false;
}

}  // namespace torchamp
