// A bounds check that lets lanes exit before a warp sum.
#include "planted.h"

int main() {
  emulation::launch(1, 32, 30, [](int count) {
    if (static_cast<int>(threadIdx.x) >= count) return;
    __shfl_down_sync(0xffffffffu, 1.0f, 16);
  });
}
