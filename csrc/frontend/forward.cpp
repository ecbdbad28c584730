// Forward: the scope that a Model's call opens around the module's forward.
#include <torchamp/model.h>

#include <utility>

#include "frontend/dtype_errors.h"
#include "frontend/session.h"

namespace torchamp::detail {

struct Forward::Casts {
  std::optional<float8::Float8Forward> in_float8;
  std::optional<disable_casts> shield;
  std::optional<JoinAutocast> joined;
};

Forward::Forward(const Amp& amp) : session_(amp.session()), casts_(std::make_unique<Casts>()) {
  session_.publish();
  session_.is_called = true;
  if (session_.float8() != nullptr) casts_->in_float8.emplace(*session_.float8());
  if (session_.uses_autocast()) {
    casts_->joined.emplace(session_.open_autocast());
  } else {
    if (session_.float8() == nullptr) casts_->shield.emplace();
    session_.warn_of_autocast();
  }
}

Forward::~Forward() = default;

std::optional<at::ScalarType> input_type(const Amp& amp) {
  return amp.session().input_type();
}

std::optional<at::ScalarType> output_type(const Amp& amp) {
  return amp.session().output_type();
}

std::string Forward::explanation(const char* message) const {
  const bool uses_autocast = session_.uses_autocast();
  const auto low = uses_autocast ? session_.properties().autocast_type : session_.input_type();
  if (!low || !c10::isReducedFloatingType(*low)) return "";
  switch (dtype_error(message)) {
    case DtypeError::kNone:
    case DtypeError::kHook:
      return "";
    case DtypeError::kOverflow:
      return c10::str("forward: ", *low,
                      " does not hold a number of this size; write -INFINITY in "
                      "the place of a mask's number like -1e9");
    case DtypeError::kNoKernel:
      return c10::str("forward: LibTorch has no kernel in ", *low,
                      " here; run this part in float32: in forward ",
                      "`{ const amp::disable_casts off; y = part(x.to(torch::kFloat)); }`",
                      uses_autocast ? "" : ", and name its modules in Options::keep_fp32");
    case DtypeError::kMixed:
      break;
  }
  return uses_autocast ? c10::str("forward: autocast has no rule for this op, which got ", *low,
                                  " and float32; cast one of them, or wrap the call in "
                                  "amp::float_function or amp::promote_function")
                       : c10::str("forward: the model is in ", *low,
                                  "; make tensors in forward by x.options(), register every "
                                  "module, parameter and buffer, declare amp_members for structs "
                                  "of tensors, cast what parts of keep_fp32 are called with, add "
                                  "modules before initialize, and call the model, not the module");
}

void Forward::rethrow_explained() const {
  torchamp::rethrow_explained([this](const char* message) { return explanation(message); });
}

}  // namespace torchamp::detail
