// A block sum with shared memory for too few warps.
#include "planted.h"

int main() {
  emulation::launch(1, 128, 0, [](int) {
    TORCHAMP_SHARED(float, sums, 3);
    float* of_warps = sums;
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = 1.0f;
  });
}
