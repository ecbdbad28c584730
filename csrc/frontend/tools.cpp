#include <torchamp/detail/tools.h>

#include "autocast/open_autocast.h"
#include "frontend/session.h"

namespace torchamp::detail {

void backward_without_casts(const at::Tensor& loss) {
  const ShieldBackward shield;
  loss.backward();
}

bool is_called(const Amp& amp) {
  return amp.session().is_called;
}

Float8Products float8_products(const Amp& amp) {
  const auto& weights = amp.session().casts().float8;
  return weights ? weights->products() : Float8Products();
}

void forget_float8_copies(const Amp& amp) {
  amp.session().casts().forget_copies();
}

}  // namespace torchamp::detail
