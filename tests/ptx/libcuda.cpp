#include "libcuda.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>

#include "machine.h"

namespace {

using ptx::FaultKind;
using ptx::Kernel;

enum Error {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kNoBinary = 209,
  kInvalidPtx = 218,
  kUnsupportedPtx = 222,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kOutOfResources = 701,
  kContextDestroyed = 709,
  kMisalignedAddress = 716,
  kLaunchFailed = 719,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureImplicit = 906,
};

const char* name_of(int code) {
  switch (code) {
#define CASE(constant, name) \
  case constant:             \
    return "CUDA_" name
    CASE(kSuccess, "SUCCESS");
    CASE(kInvalidValue, "ERROR_INVALID_VALUE");
    CASE(kOutOfMemory, "ERROR_OUT_OF_MEMORY");
    CASE(kNotInitialized, "ERROR_NOT_INITIALIZED");
    CASE(kInvalidDevice, "ERROR_INVALID_DEVICE");
    CASE(kInvalidContext, "ERROR_INVALID_CONTEXT");
    CASE(kNoBinary, "ERROR_NO_BINARY_FOR_GPU");
    CASE(kInvalidPtx, "ERROR_INVALID_PTX");
    CASE(kUnsupportedPtx, "ERROR_UNSUPPORTED_PTX_VERSION");
    CASE(kNotFound, "ERROR_NOT_FOUND");
    CASE(kNotReady, "ERROR_NOT_READY");
    CASE(kIllegalAddress, "ERROR_ILLEGAL_ADDRESS");
    CASE(kOutOfResources, "ERROR_LAUNCH_OUT_OF_RESOURCES");
    CASE(kContextDestroyed, "ERROR_CONTEXT_IS_DESTROYED");
    CASE(kMisalignedAddress, "ERROR_MISALIGNED_ADDRESS");
    CASE(kLaunchFailed, "ERROR_LAUNCH_FAILED");
    CASE(kCaptureUnsupported, "ERROR_STREAM_CAPTURE_UNSUPPORTED");
    CASE(kCaptureInvalidated, "ERROR_STREAM_CAPTURE_INVALIDATED");
    CASE(kCaptureImplicit, "ERROR_STREAM_CAPTURE_IMPLICIT");
#undef CASE
  }
  return nullptr;
}

int setting(const char* variable, int otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value);
}

int capability() {
  return setting("TORCHAMP_PTX_CAPABILITY", 90);
}

int driver_version() {
  return setting("TORCHAMP_PTX_DRIVER", 13090);
}

constexpr int kDevices = 2;
constexpr std::size_t kAlignment = 512;  // of allocations
constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;
constexpr std::size_t kSharedBytes = 48 << 10;
constexpr int kActive = 1, kInvalidated = 2;  // states of a capture
constexpr int kRelaxed = 2;                   // a mode of it

struct Context {
  int retained = 0;
};

struct Module {
  ptx::Program program;
};

using Work = std::function<int()>;

/// What a stream has yet to do. Its handle may be null, and is the same on each device then.
struct Stream {
  std::deque<Work> queue;
  std::uint64_t executed = 0;

  std::uint64_t end() const { return executed + queue.size(); }

  /// Does what there is up to that position.
  int execute_until(std::uint64_t position) {
    int code = kSuccess;
    while (executed < position && !queue.empty()) {
      const Work next = std::move(queue.front());
      queue.pop_front();
      ++executed;
      if (const int failure = next()) code = failure;
    }
    return code;
  }
};

/// The driver's state, which all threads share.
struct Driver {
  std::mutex mutex;
  pid_t process = 0;  ///< that called cuInit
  Context primaries[kDevices];
  std::map<void*, std::unique_ptr<Module>> modules;
  std::vector<std::unique_ptr<Module>> unloaded;  ///< kept for their coverage
  int loads = 0;
  int failure = kSuccess;  ///< the fault after which all calls fail
  std::string fault;
  ptx::Traffic traffic;
  std::uint64_t launches = 0;
  bool queues_launches = false;
  std::map<std::pair<int, void*>, Stream> streams;
  ptx::Memory memory[kDevices];   ///< what each device may access; all if none is known
  std::map<void*, int> captures;  ///< the state of each stream's
  std::vector<Work> captured;

  bool has(int device) const { return device >= 0 && device < kDevices; }

  int give(Stream& stream, Work work) {
    stream.queue.push_back(std::move(work));
    return queues_launches ? kSuccess : stream.execute_until(stream.end());
  }
};

Driver& driver() {
  static Driver driver;
  return driver;
}

thread_local std::vector<Context*> contexts;
thread_local int capture_mode = 0;

/// What forbids any call, for a caller that holds the mutex.
int refusal() {
  const Driver& cuda = driver();
  if (cuda.process != getpid()) return kNotInitialized;
  return cuda.failure;
}

/// What forbids a call that needs a current context.
int context_refusal() {
  if (const int code = refusal()) return code;
  if (contexts.empty()) return kInvalidContext;
  return contexts.back()->retained == 0 ? kContextDestroyed : kSuccess;
}

/// Calls that a thread may not make while a stream is captured invalidate the capture.
int forbid_while_capturing(int code) {
  Driver& cuda = driver();
  if (cuda.captures.empty() || capture_mode == kRelaxed) return kSuccess;
  for (auto& [stream, state] : cuda.captures) state = kInvalidated;
  return code;
}

int code_of(FaultKind kind) {
  if (kind == FaultKind::kIllegalAddress) return kIllegalAddress;
  return kind == FaultKind::kMisaligned ? kMisalignedAddress : kLaunchFailed;
}

ptx::Schedule schedule() {
  ptx::Schedule schedule;
  if (std::getenv("TORCHAMP_PTX_SEED") == nullptr) return schedule;
  schedule.resident_blocks = 8;
  schedule.turn = 40;
  schedule.delays_stores = schedule.is_random = true;
  schedule.seed = static_cast<std::uint32_t>(setting("TORCHAMP_PTX_SEED", 0));
  return schedule;
}

int execute(int device, Kernel& kernel, unsigned blocks, unsigned threads, const void* parameter) {
  Driver& cuda = driver();
  if (cuda.failure != kSuccess) return cuda.failure;
  const ptx::Memory& memory = cuda.memory[device];
  ptx::Grid grid(kernel, blocks, threads, parameter, schedule(),
                 memory.empty() ? nullptr : &memory);
  try {
    grid.run();
  } catch (const ptx::Fault& fault) {
    cuda.fault = fault.what();
    std::fprintf(stderr, "libcuda.so.1 of the tests: %s\n", fault.what());
    cuda.failure = code_of(fault.kind);
  }
  cuda.traffic.loaded += grid.traffic().loaded;
  cuda.traffic.stored += grid.traffic().stored;
  return cuda.failure;
}

struct Geometry {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
};

int launch(Kernel* kernel, const Geometry& geometry, void* stream, void** parameters,
           void** extra) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  if (const int code = context_refusal()) return code;
  const auto& [grid, block, shared_bytes] = geometry;
  if (kernel == nullptr || parameters == nullptr || extra != nullptr) return kInvalidValue;
  if (grid[0] == 0 || grid[1] != 1 || grid[2] != 1 || block[0] == 0) return kInvalidValue;
  if (block[1] != 1 || block[2] != 1) return kInvalidValue;  // no kernel here uses more dimensions
  const bool fits = kernel->shared_bytes + shared_bytes <= kSharedBytes;
  if (block[0] > kernel->most_threads || !fits) return kOutOfResources;
  if (stream == nullptr) {
    if (const int code = forbid_while_capturing(kCaptureImplicit)) return code;
  }
  const auto* const bytes = static_cast<const char*>(parameters[0]);
  const int device = static_cast<int>(contexts.back() - cuda.primaries);
  Work work = [=, blocks = grid[0], threads = block[0],
               kept = std::vector<char>(bytes, bytes + kernel->parameter_bytes)] {
    return execute(device, *kernel, blocks, threads, kept.data());
  };
  ++cuda.launches;
  const auto capture = cuda.captures.find(stream);
  if (capture != cuda.captures.end()) {
    if (capture->second == kInvalidated) return kCaptureInvalidated;
    cuda.captured.push_back(std::move(work));
    return kSuccess;
  }
  return cuda.give(cuda.streams[{device, stream}], std::move(work));
}

/// The PTX of an image, or what stands in for an image that only a card can execute.
std::string text_of(const char* image) {
  const char* const path = std::getenv("TORCHAMP_PTX");
  if (std::strstr(image, ".version") != nullptr || path == nullptr) return image;
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

int load(const std::string& text, std::unique_ptr<Module>& module) {
  Driver& cuda = driver();
  if (++cuda.loads == setting("TORCHAMP_PTX_OUT_OF_MEMORY", 0)) return kOutOfMemory;
  if (text.find(".version") == std::string::npos) return kNoBinary;
  auto loaded = std::make_unique<Module>();
  try {
    loaded->program = ptx::parse(text);
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "libcuda.so.1 of the tests: %s\n", error.what());
    return kInvalidPtx;
  }
  // PTX 8.0 came with CUDA 12.0, and so on.
  if (loaded->program.version > (driver_version() / 1000 - 4) * 10 + driver_version() % 1000 / 10) {
    return kUnsupportedPtx;
  }
  if (loaded->program.capability > capability()) return kNoBinary;
  module = std::move(loaded);
  return kSuccess;
}

}  // namespace

extern "C" {

int cuInit(unsigned flags) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  if (flags != 0) return kInvalidValue;
  if (cuda.process != 0 && cuda.process != getpid()) return kNotInitialized;
  cuda.process = getpid();
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = driver_version();
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  const std::lock_guard<std::mutex> lock(driver().mutex);
  if (const int code = refusal()) return code;
  if (!driver().has(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const std::lock_guard<std::mutex> lock(driver().mutex);
  if (const int code = refusal()) return code;
  if (!driver().has(device)) return kInvalidDevice;
  if (attribute != kCapabilityMajor && attribute != kCapabilityMinor) return kInvalidValue;
  *value = attribute == kCapabilityMajor ? capability() / 10 : capability() % 10;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard<std::mutex> lock(driver().mutex);
  if (const int code = refusal()) return code;
  if (!driver().has(device)) return kInvalidDevice;
  Context& primary = driver().primaries[device];
  ++primary.retained;
  *context = &primary;
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  const std::lock_guard<std::mutex> lock(driver().mutex);
  if (const int code = refusal()) return code;
  if (!driver().has(device)) return kInvalidDevice;
  Context& primary = driver().primaries[device];
  if (primary.retained == 0) return kInvalidContext;
  --primary.retained;
  return kSuccess;
}

int cuCtxPushCurrent_v2(void* context) {
  const std::lock_guard<std::mutex> lock(driver().mutex);
  if (const int code = refusal()) return code;
  Context* const first = driver().primaries;
  if (context < first || context >= first + kDevices) return kInvalidContext;
  auto* const primary = static_cast<Context*>(context);
  if (primary->retained == 0) return kContextDestroyed;
  contexts.push_back(primary);
  return kSuccess;
}

int cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}

int cuModuleLoadData(void** module, const void* image) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  if (const int code = context_refusal()) return code;
  if (const int code = forbid_while_capturing(kCaptureUnsupported)) return code;
  std::unique_ptr<Module> loaded;
  if (const int code = load(text_of(static_cast<const char*>(image)), loaded)) return code;
  *module = loaded.get();
  cuda.modules[*module] = std::move(loaded);
  return kSuccess;
}

int cuModuleUnload(void* module) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  if (const int code = context_refusal()) return code;
  const auto known = cuda.modules.find(module);
  if (known == cuda.modules.end()) return kInvalidValue;
  cuda.unloaded.push_back(std::move(known->second));
  cuda.modules.erase(known);
  return kSuccess;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  if (const int code = context_refusal()) return code;
  const auto known = cuda.modules.find(module);
  if (known == cuda.modules.end()) return kInvalidValue;
  *function = known->second->program.find(name);
  return *function == nullptr ? kNotFound : kSuccess;
}

int cuFuncLoad(void* function) {
  const std::lock_guard<std::mutex> lock(driver().mutex);
  if (const int code = context_refusal()) return code;
  return function == nullptr ? kInvalidValue : kSuccess;
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** parameters, void** extra) {
  return launch(static_cast<Kernel*>(function),
                {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes}, stream,
                parameters, extra);
}

int cuStreamIsCapturing(void* stream, int* status) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  if (const int code = context_refusal()) return code;
  const auto capture = cuda.captures.find(stream);
  *status = capture == cuda.captures.end() ? 0 : capture->second;
  return kSuccess;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}

int cuGetErrorName(int code, const char** name) {
  *name = name_of(code);
  return *name == nullptr ? kInvalidValue : kSuccess;
}

/// NVRTC asks for private tables, and does without them.
int cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return kNotFound;
}

void ptxTraffic(std::uint64_t* loaded, std::uint64_t* stored) {
  const std::lock_guard<std::mutex> lock(driver().mutex);
  *loaded = driver().traffic.loaded;
  *stored = driver().traffic.stored;
}

void ptxCoverage(void (*visit)(const char* kernel, int executed, int instructions)) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  const auto visit_module = [&](const Module& module) {
    for (const auto& kernel : module.program.kernels) {
      int executed = 0;
      for (const char each : kernel->executed) executed += each;
      visit(kernel->name.c_str(), executed, static_cast<int>(kernel->code.size()));
    }
  };
  for (const auto& [handle, module] : cuda.modules) visit_module(*module);
  for (const auto& module : cuda.unloaded) visit_module(*module);
}

const char* ptxFault() {
  return driver().fault.c_str();
}

std::uint64_t ptxLaunches() {
  const std::lock_guard<std::mutex> lock(driver().mutex);
  return driver().launches;
}

void* ptxAllocate(int device, std::uint64_t bytes) {
  const std::uint64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* const begin = static_cast<char*>(std::aligned_alloc(kAlignment, rounded));
  std::memset(begin, 0xff, bytes);
  const std::lock_guard<std::mutex> lock(driver().mutex);
  for (int each = 0; each < kDevices; ++each) {
    if (device == ptxHost || device == each) driver().memory[each][begin] = begin + bytes;
  }
  return begin;
}

void ptxFree(int device, void* stream, void* address) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  Work work = [&cuda, address] {
    for (ptx::Memory& memory : cuda.memory) memory.erase(static_cast<char*>(address));
    std::free(address);
    return kSuccess;
  };
  if (device == ptxHost) {
    work();
  } else {
    cuda.give(cuda.streams[{device, stream}], std::move(work));
  }
}

void ptxQueueLaunches() {
  driver().queues_launches = true;
}

std::uint64_t ptxRecord(int device, void* stream) {
  const std::lock_guard<std::mutex> lock(driver().mutex);
  return driver().streams[{device, stream}].end();
}

void ptxWait(int device, void* stream, int other_device, void* other, std::uint64_t position) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  Stream& awaited = cuda.streams[{other_device, other}];
  cuda.give(cuda.streams[{device, stream}],
            [&awaited, position] { return awaited.execute_until(position); });
}

int ptxQuery(int device, void* stream, std::uint64_t position) {
  const std::lock_guard<std::mutex> lock(driver().mutex);
  Stream& queried = driver().streams[{device, stream}];
  if (queried.executed >= position) return kSuccess;
  const int code = queried.execute_until(queried.executed + 1);
  return code == kSuccess ? kNotReady : code;
}

int ptxSynchronize(int device, void* stream, std::uint64_t position) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  if (cuda.captures.count(stream) != 0) return kCaptureUnsupported;
  const int code = cuda.streams[{device, stream}].execute_until(position);
  return code == kSuccess ? cuda.failure : code;
}

int ptxBeginCapture(void* stream) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  if (stream == nullptr) return kCaptureImplicit;
  cuda.captures[stream] = kActive;
  cuda.captured.clear();
  return kSuccess;
}

int ptxEndCapture(void* stream) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  const auto capture = cuda.captures.find(stream);
  if (capture == cuda.captures.end()) return kInvalidValue;
  const int state = capture->second;
  cuda.captures.erase(capture);
  return state == kInvalidated ? kCaptureInvalidated : kSuccess;
}

int ptxReplay(int device, void* stream) {
  Driver& cuda = driver();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  for (const Work& work : cuda.captured) {
    if (const int code = cuda.give(cuda.streams[{device, stream}], work)) return code;
  }
  return kSuccess;
}
}
