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
#define TORCHAMP_LAYOUT(Name, name, function, Parameter) \
  {Kernel::k##Name, sizeof(Parameter), alignof(Parameter)},
    TORCHAMP_KERNELS(TORCHAMP_LAYOUT)
#undef TORCHAMP_LAYOUT
};

TEST(Layout, IsTheSameOnHostAndDevice) {
  ptx::Program program;
  for (const Layout& host : kLayouts) {
    if (program.find(name(host.kernel)) == nullptr) program = program_of(host.kernel);
    const ptx::Kernel* const device = program.find(name(host.kernel));
    ASSERT_NE(device, nullptr) << name(host.kernel);
    EXPECT_EQ(device->parameter_bytes, host.bytes) << device->name;
    EXPECT_EQ(device->parameter_alignment, host.alignment) << device->name;
  }
}

}  // namespace
}  // namespace torchamp::cuda
