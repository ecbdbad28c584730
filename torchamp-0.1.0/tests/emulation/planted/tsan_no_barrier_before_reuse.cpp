// Shared memory that is overwritten while other threads may still read it.
#include "planted.h"

int main() {
  emulation::launch(1, 128, 0, [](int) {
    TORCHAMP_SHARED(float, sums, 4);
    for (int turn = 0; turn < 2; ++turn) {
      if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = static_cast<float>(turn);
      __syncthreads();
      volatile float total = sums[0] + sums[3];
      (void)total;
    }
  });
}
