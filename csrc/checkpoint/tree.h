// A checkpoint's contents: dictionaries and lists of tensors, numbers and text. Errors name the
// wrong entry.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace torchamp::checkpoint {

using Tree = c10::impl::GenericDict;

Tree new_tree();
c10::IValue list_of(const std::vector<c10::IValue>& values);

/// A program's value as a file has it: tensors, numbers, text, None, and lists, tuples and
/// dictionaries of these. Throws TypeError, which names it `name`, for others.
c10::IValue data_of(const c10::IValue& value, const std::string& name);

/// The entry of that name. Throws if there is none.
c10::IValue take(const Tree& tree, const std::string& key);

/// A value of the file as the expected type; `what` is its name. Throws if it has another type.
Tree as_tree(const c10::IValue& value, const std::string& what);
std::vector<c10::IValue> as_list(const c10::IValue& value, const std::string& what);
at::Tensor as_tensor(const c10::IValue& value, const std::string& what);
std::string as_text(const c10::IValue& value, const std::string& what);
/// Numbers may be tensors of one element.
double as_double(const c10::IValue& value, const std::string& what);
int64_t as_int(const c10::IValue& value, const std::string& what);

}  // namespace torchamp::checkpoint
