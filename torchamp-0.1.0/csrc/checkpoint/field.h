// Converts one value of an optimizer to a checkpoint's and back.
#pragma once

#include <torchamp/optim/fused_options.h>

#include <optional>
#include <string>
#include <variant>

#include "checkpoint/tree.h"

namespace torchamp::checkpoint {

/// A value in a group's options or a parameter's state.
struct Field {
  const char* name;
  std::variant<double*, bool*, int64_t*, at::Tensor*, optim::Betas*, std::optional<double>*> value;
  bool may_be_absent = false;
};

c10::IValue saved_field(const Field& field);
void read_field(const Field& field, const c10::IValue& value, const std::string& what);

}  // namespace torchamp::checkpoint
