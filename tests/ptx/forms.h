// The instructions that are supported, by their form: opcode and modifiers, as in "add.s32".
#pragma once

#include <string>

#include "program.h"

namespace ptx {

struct Form {
  Kind kind;
  Execute execute;
  int operands;
  bool has_address;  ///< one of them is an address
};

/// Null if the form is not supported.
const Form* find_form(const std::string& name);

}  // namespace ptx
