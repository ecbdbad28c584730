// Forward: the scope that a Model's call opens around the module's forward.
#include <torchamp/model.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "frontend/session.h"

namespace torchamp::detail {
namespace {

/// Parts of LibTorch's messages.
const std::vector<std::string_view> kMixed{
    "must have the same dtype",
    "to have the same dtype",
    "to have same dtypes",
    "should have same dtype",
    "source and destination dtypes match",
    "should be the same",
    "expected scalar type",
    "must have the same scalar type",
    "self.dtype to be equal to src.dtype",
};
const std::vector<std::string_view> kNoKernel{"not implemented for 'Half'",
                                              "not implemented for 'BFloat16'"};

bool has_one_of(const c10::Error& error, const std::vector<std::string_view>& parts) {
  return std::any_of(parts.begin(), parts.end(), [&error](std::string_view part) {
    return error.msg().find(part) != std::string::npos;
  });
}

}  // namespace

struct Forward::Casts {
  std::optional<disable_casts> shield;
  std::optional<JoinAutocast> joined;
};

Forward::Forward(const Amp& amp) : session_(amp.session()), casts_(std::make_unique<Casts>()) {
  session_.publish();
  session_.is_called = true;
  if (session_.uses_autocast()) {
    casts_->joined.emplace(session_.open_autocast());
  } else {
    casts_->shield.emplace();
  }
}

Forward::~Forward() = default;

std::optional<at::ScalarType> input_type(const Amp& amp) {
  return amp.session().input_type();
}

std::optional<at::ScalarType> output_type(const Amp& amp) {
  return amp.session().output_type();
}

void Forward::explain(c10::Error& error) const {
  const bool uses_autocast = session_.uses_autocast();
  const auto low = uses_autocast ? session_.properties().autocast_type : session_.input_type();
  if (!low || !c10::isReducedFloatingType(*low)) return;
  if (has_one_of(error, kNoKernel)) {
    error.add_context(c10::str(
        "forward: LibTorch has no kernel in ", *low, " here; run this part in float32: in forward ",
        "`{ const amp::disable_casts off; y = part(x.to(torch::kFloat)); }`",
        uses_autocast ? "" : ", and name its modules in Options::keep_fp32"));
  } else if (has_one_of(error, kMixed) && uses_autocast) {
    error.add_context(c10::str("forward: autocast has no rule for this op, which got ", *low,
                               " and float32; cast one of them, or wrap the call in "
                               "amp::float_function or amp::promote_function"));
  } else if (has_one_of(error, kMixed)) {
    error.add_context(
        c10::str("forward: the model is in ", *low,
                 "; make tensors in forward by x.options(), register every module, "
                 "add modules before initialize, and call the model, not the module"));
  }
}

}  // namespace torchamp::detail
