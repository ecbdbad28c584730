// Forward: the scope that a Model's call opens around the module's forward.
#include <ATen/autocast_mode.h>
#include <torchamp/model.h>

#include <utility>

#include "frontend/dtype_errors.h"
#include "frontend/session.h"

namespace torchamp::detail {
namespace {

/// Warns once of an autocast scope of the program in this thread, around a cast model.
void warn_of_autocast(Session& session) {
  const auto low = session.input_type();
  if (!low || !c10::isReducedFloatingType(*low) || session.models().empty()) return;
  const at::DeviceType type = session.loss_scalers().front().device().type();
  if (!at::autocast::is_autocast_available(type) || !at::autocast::is_autocast_enabled(type))
    return;
  session.notices().warn_once(
      c10::str("forward: expected no autocast around a model that initialize has cast to ", *low,
               ", got a scope that casts to ", at::autocast::get_autocast_dtype(type),
               ", which casts its ops again; leave the scope out"));
}

}  // namespace

struct Forward::Casts {
  std::optional<float8::Float8Forward> in_float8;
  std::optional<disable_casts> shield;
  std::optional<JoinAutocast> joined;
};

Forward::Forward(const Amp& amp) : session_(amp.session()), casts_(std::make_unique<Casts>()) {
  session_.publish();
  session_.is_called = true;
  const auto& [autocast, in_float8] = session_.casts();
  if (in_float8) casts_->in_float8.emplace(*in_float8);
  if (autocast) {
    casts_->joined.emplace(*autocast);
  } else {
    if (!in_float8) casts_->shield.emplace();
    warn_of_autocast(session_);
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
  const bool uses_autocast = session_.casts().autocast.has_value();
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
