// A block sum that is read before all warps have written their part.
#include "planted.h"

int main() {
  float total = 0.0f;
  emulation::launch(1, 128, &total, [](float* result) {
    TORCHAMP_SHARED(float, sums, 4);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = 1.0f;
    if (threadIdx.x == 0) *result = sums[0] + sums[1] + sums[2] + sums[3];
  });
}
