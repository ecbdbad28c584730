// Two blocks that add to one number without an atomic.
#include "planted.h"

int main() {
  float total = 0.0f;
  emulation::launch(2, 32, &total, [](float* result) {
    if (threadIdx.x == 0) *result += 1.0f;
  });
}
