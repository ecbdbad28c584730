// A bounds check that lets threads leave before the block meets.
#include "planted.h"

int main() {
  emulation::launch(1, 64, 60, [](int count) {
    if (static_cast<int>(threadIdx.x) >= count) return;
    __syncthreads();
  });
}
