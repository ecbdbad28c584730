#pragma once

#include <cstddef>
#include <vector>

namespace torchamp::cuda {

/// One file of the kernel program: `name` is the text between the quotes of its #include.
struct EmbeddedFile {
  const char* name;
  const char* text;
};

/// The kernel program for NVRTC: kernels.cu first, then every file that it includes.
const std::vector<EmbeddedFile>& embedded_sources();

struct EmbeddedImage {
  const unsigned char* data;
  std::size_t size;
};

/// The kernel program compiled by nvcc when torchamp was built; size 0 if nvcc was absent.
EmbeddedImage embedded_fatbin();

}  // namespace torchamp::cuda
