// A walk that loads vectors from a misaligned start and ignores that the last vector is incomplete.
#include <cstdlib>

#include "cuda/vector.h"
#include "planted.h"

namespace cuda = torchamp::cuda;

int main() {
  constexpr int kCount = 253;
  char* halves = static_cast<char*>(std::malloc((2 + kCount) * 2)) + 2 * 2;
  emulation::launch(1, 32, halves, [](char* from) {
    cuda::Bits<2> bits;
    for (int i = 0; i < kCount; i += 64) {
      cuda::load_bytes<4>(from + 2 * (i + 2 * static_cast<int>(threadIdx.x)), bits.words);
      volatile torchamp::uint32 taken = bits.words[0];
      (void)taken;
    }
  });
}
