// A bounds check that lets threads exit before a barrier.
#include "planted.h"

int main() {
  emulation::launch(1, 64, 60, [](int count) {
    if (static_cast<int>(threadIdx.x) >= count) return;
    __syncthreads();
  });
}
