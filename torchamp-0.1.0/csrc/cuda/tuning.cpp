#include "cuda/tuning.h"

namespace torchamp::cuda {

Tuning& tuning() {
  static Tuning tuning;
  return tuning;
}

}  // namespace torchamp::cuda
