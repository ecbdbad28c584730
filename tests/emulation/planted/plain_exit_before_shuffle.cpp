// A bounds check that lets lanes leave before the warp adds up.
#include "planted.h"

int main() {
  emulation::launch(1, 32, 30, [](int count) {
    if (static_cast<int>(threadIdx.x) >= count) return;
    __shfl_down_sync(0xffffffffu, 1.0f, 16);
  });
}
