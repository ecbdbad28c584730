// torchamp's loader on a driver that refuses. Each test has a process of its own, since a driver's
// state lasts as long.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>

#include "cuda/embedded.h"
#include "cuda/loader.h"
#include "libcuda.h"

namespace torchamp::cuda {

/// One kernel that writes 1 to the address that it is given.
EmbeddedImage embedded_fatbin() {
  static const std::string text = R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry torchamp_check(
	.param .align 8 .b8 torchamp_check_param_0[8]
)
.maxntid 512, 1, 1
.minnctapersm 1
{
	.reg .b64 	%rd<2>;
	ld.param.u64 	%rd1, [torchamp_check_param_0];
	st.global.u32 	[%rd1], 1;
	ret;
}
)";
  return {reinterpret_cast<const unsigned char*>(text.c_str()), text.size()};
}

const std::vector<EmbeddedFile>& embedded_sources() {
  static const std::vector<EmbeddedFile> none;
  return none;
}

namespace {

using Settings = std::vector<std::pair<const char*, const char*>>;

/// What `body` returns in a new process with these environment variables.
std::string in_process(const Settings& settings, const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    for (const auto& [variable, value] : settings) setenv(variable, value, 1);
    std::string outcome;
    try {
      outcome = body();
    } catch (const std::exception& error) {
      outcome = error.what();
    }
    const bool is_written = write(ends[1], outcome.data(), outcome.size()) >= 0;
    std::_Exit(is_written ? 0 : 1);
  }
  close(ends[1]);
  std::string outcome;
  char part[256];
  for (ssize_t count; (count = read(ends[0], part, sizeof(part))) > 0;) outcome.append(part, count);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? outcome : "the process ended with " + std::to_string(status);
}

std::string backend_with(const Settings& settings) {
  return in_process(settings, [] {
    const Module module = load_module(driver(), 0, Choice::kAuto);
    return name(module.backend) + std::string(module.reason.empty() ? "" : ": ") + module.reason;
  });
}

/// The first line, since the second tells about NVRTC.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

TEST(Loader, TakesPtxOfTheCardsGenerationOrAnOlderOne) {
  EXPECT_EQ(backend_with({{"TORCHAMP_PTX_CAPABILITY", "80"}}), "fatbin");
  EXPECT_EQ(backend_with({{"TORCHAMP_PTX_CAPABILITY", "121"}}), "fatbin");
  EXPECT_EQ(first_line(backend_with({{"TORCHAMP_PTX_CAPABILITY", "75"}})),
            "aten: fatbin: loading the kernels failed: CUDA_ERROR_NO_BINARY_FOR_GPU (209)");
}

TEST(Loader, TellsWhyADeviceHasNoKernels) {
  EXPECT_EQ(
      backend_with({{"TORCHAMP_PTX_DRIVER", "12000"}}),
      "aten: device 0: the driver supports CUDA 12.0, the kernels need 12.1; update the driver");
  EXPECT_EQ(backend_with({{"TORCHAMP_PTX_CAPABILITY", "60"}}),
            "aten: device 0: the device has compute capability 6.0, the kernels need 7.0");
}

TEST(Loader, TriesAgainWhereTheMemoryIsFull) {
  EXPECT_EQ(in_process({{"TORCHAMP_PTX_OUT_OF_MEMORY", "1"}},
                       [] {
                         std::string first;
                         try {
                           load_module(driver(), 0, Choice::kAuto);
                         } catch (const OutOfMemory& error) {
                           first = error.what();
                         }
                         return first + "; " +
                                name(load_module(driver(), 0, Choice::kAuto).backend);
                       }),
            "loading the kernels failed: CUDA out of memory. torch.cuda.empty_cache() frees what "
            "torch keeps unused; fatbin");
}

/// A function of the loaded kernel, for a stream that is being captured or not.
struct Loaded {
  Module module = load_module(driver(), 0, Choice::kAot);
  void* function = load_kernel(driver(), module, {Function::kCheck});

  int launch(void* stream, unsigned threads, const void* address) const {
    const ContextScope current(driver(), module.context->handle());
    void* parameters[] = {&address};
    return driver().launch_kernel(function, 1, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
  }
};

int stream;  // its address stands for one

TEST(Launch, IsRefusedWithoutAContextAndForTooManyThreads) {
  EXPECT_EQ(in_process({},
                       [] {
                         const Loaded loaded;
                         int written = 0;
                         const void* address = &written;
                         void* parameters[] = {&address};
                         const int without = driver().launch_kernel(
                             loaded.function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
                         const int too_many = loaded.launch(nullptr, 513, &written);
                         const int right = loaded.launch(nullptr, 512, &written);
                         return std::to_string(without) + " " + std::to_string(too_many) + " " +
                                std::to_string(right) + " " + std::to_string(written);
                       }),
            "201 701 0 1");
}

TEST(Launch, FailsForEverAfterAFault) {
  EXPECT_EQ(
      in_process({},
                 [] {
                   const Loaded loaded;
                   char bytes[8] = {};
                   alignas(4) int written = 0;
                   std::freopen("/dev/null", "w", stderr);
                   const int fault = loaded.launch(nullptr, 1, bytes + 1);
                   int device = 0;
                   const int after = driver().device_get(&device, 0);
                   return std::to_string(fault) + " " + std::to_string(after) + " " + ptxFault() +
                          std::to_string(written);
                 }),
      "716 716 torchamp_check, line 12, block 0, warp 0: an access of 4 bytes is misaligned0");
}

TEST(Capture, KeepsLaunchesAndAllowsTheLoader) {
  EXPECT_EQ(in_process({},
                       [] {
                         ptxBeginCapture(&stream);
                         const Loaded loaded;
                         int written = 0;
                         loaded.launch(&stream, 32, &written);
                         const int while_capturing = written;
                         const int ended = ptxEndCapture(&stream);
                         ptxReplay(0, nullptr);
                         return std::to_string(while_capturing) + std::to_string(ended) +
                                std::to_string(written);
                       }),
            "001");
}

TEST(Capture, IsInvalidatedByLoadsThatAreNotRelaxedAndByTheNullStream) {
  EXPECT_EQ(in_process({},
                       [] {
                         const Loaded loaded;
                         const ContextScope current(driver(), loaded.module.context->handle());
                         void* module = nullptr;
                         int written = 0;
                         ptxBeginCapture(&stream);
                         const int load = driver().module_load(&module, embedded_fatbin().data);
                         const int first = ptxEndCapture(&stream);
                         ptxBeginCapture(&stream);
                         const int launch = loaded.launch(nullptr, 32, &written);
                         const int second = ptxEndCapture(&stream);
                         return std::to_string(load) + " " + std::to_string(first) + " " +
                                std::to_string(launch) + " " + std::to_string(second);
                       }),
            "900 901 906 901");
}

TEST(Driver, IsNotInitializedInAForkedProcess) {
  EXPECT_EQ(in_process({},
                       [] {
                         driver();
                         return in_process({}, [] {
                           int device = 0;
                           return std::to_string(driver().device_get(&device, 0));
                         });
                       }),
            "3");
}

}  // namespace
}  // namespace torchamp::cuda
