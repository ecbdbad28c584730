#include "cuda/stream.h"

#include "cuda/driver.h"
#include "cuda/library.h"

namespace torchamp::cuda {
namespace {

using StreamOf = int(int device, void** stream);

/// torch's C function, looked up in the library that torch has loaded: its symbols are not global,
/// and its file may carry a version.
StreamOf* find_stream_of() {
  const std::string path = loaded_library("libtorch_cuda.so");
  if (path.empty())
    throw std::runtime_error("torch has not loaded libtorch_cuda.so: it is a build without CUDA");
  StreamOf* stream_of = nullptr;
  Library(path).find("aoti_torch_get_current_cuda_stream", stream_of);
  return stream_of;
}

}  // namespace

Queue current_queue(int device) {
  static StreamOf* const stream_of = find_stream_of();
  void* stream = nullptr;
  if (stream_of(device, &stream) != 0) {
    throw std::runtime_error("torch has no current stream for CUDA device " +
                             std::to_string(device));
  }
  return {device, stream};
}

bool is_capturing(Queue queue) {
  const Driver& cuda = driver();
  const PrimaryContext context(cuda, queue.device);
  const ContextScope current(cuda, context.handle());
  int status = 0;
  require(cuda, cuda.stream_is_capturing(queue.stream, &status), "querying graph capture");
  return status != 0;
}

}  // namespace torchamp::cuda
