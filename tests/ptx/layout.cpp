// The kernels' parameters have the size and the alignment of the host's structs.
#include <gtest/gtest.h>

#include "cuda/arguments.h"
#include "cuda/embedded.h"
#include "cuda/images.h"
#include "cuda/kernel.h"
#include "cuda/launch_table.h"
#include "math/clip.h"
#include "program.h"

namespace torchamp::cuda {
namespace {

/// The PTX of nvcc, with all kernels, or that of NVRTC, with this one.
ptx::Program program_of(Kernel kernel) {
  const EmbeddedImage image = embedded_fatbin();
  if (image.size != 0) return ptx::parse(reinterpret_cast<const char*>(image.data));
  return ptx::parse(image_of(kernel, std::atoi(std::getenv("TORCHAMP_PTX_CAPABILITY"))).c_str());
}

struct Layout {
  Kernel kernel;
  std::size_t bytes;
  std::size_t alignment;
};

const Layout kLayouts[] = {
#define TORCHAMP_LAYOUT(Name, table, Parameter) \
  {{Function::k##Name, table}, sizeof(Parameter), alignof(Parameter)},
#define TORCHAMP_BY_TABLE(Name, name, Arguments)                          \
  TORCHAMP_LAYOUT(Name, TableAt::kParameter, Launch<Arguments>)           \
  TORCHAMP_LAYOUT(Name, TableAt::kSmallParameter, SmallLaunch<Arguments>) \
  TORCHAMP_LAYOUT(Name, TableAt::kDevice, ResidentLaunch<Arguments>)
#define TORCHAMP_ONE(Name, name, Parameter) TORCHAMP_LAYOUT(Name, TableAt::kParameter, Parameter)
    TORCHAMP_KERNELS(TORCHAMP_BY_TABLE, TORCHAMP_ONE)
#undef TORCHAMP_LAYOUT
#undef TORCHAMP_BY_TABLE
#undef TORCHAMP_ONE
};

TEST(Layout, IsTheSameOnHostAndDevice) {
  ptx::Program program;
  for (const Layout& host : kLayouts) {
    const std::string name = cuda::name(host.kernel);
    if (program.find(name) == nullptr) program = program_of(host.kernel);
    const ptx::Kernel* const device = program.find(name);
    ASSERT_NE(device, nullptr) << name;
    EXPECT_EQ(device->parameter_bytes, host.bytes) << device->name;
    EXPECT_EQ(device->parameter_alignment, host.alignment) << device->name;
  }
}

}  // namespace
}  // namespace torchamp::cuda
