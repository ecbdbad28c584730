#include "checkpoint/tree.h"

#include <ATen/core/jit_type.h>

#include <cmath>

namespace torchamp::checkpoint {

using at::Tensor;
using c10::IValue;

namespace {

void check_kind(bool fits, const std::string& what, const char* expected, const IValue& got) {
  TORCH_CHECK(fits, "amp::load: expected \"", what, "\" of the checkpoint to be ", expected,
              ", got ", got.tagKind());
}

/// The number in a tensor of one element; other values as they are.
IValue unwrapped(const IValue& value) {
  if (!value.isTensor() || value.toTensor().numel() != 1) return value;
  return value.toTensor().item();
}

}  // namespace

Tree new_tree() {
  return Tree(c10::AnyType::get(), c10::AnyType::get());
}

IValue list_of(const std::vector<IValue>& values) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (const IValue& value : values) list.push_back(value);
  return list;
}

IValue data_of(const IValue& value, const std::string& name) {
  if (value.isNone() || value.isBool() || value.isInt() || value.isDouble() || value.isString()) {
    return value;
  }
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor().detach();
  if (value.isList() || value.isTuple()) {
    std::vector<IValue> elements = as_list(value, name);
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = data_of(elements[i], name + "[" + std::to_string(i) + "]");
    }
    return value.isList() ? list_of(elements) : c10::ivalue::Tuple::create(std::move(elements));
  }
  TORCH_CHECK_TYPE(value.isGenericDict(), "amp::save: expected ", name,
                   " to be a tensor, a number, text or a container of these, got ",
                   value.tagKind());
  Tree tree = new_tree();
  for (const auto& entry : value.toGenericDict()) {
    const IValue& key = entry.key();
    TORCH_CHECK_TYPE(key.isString() || key.isInt(), "amp::save: expected the keys of ", name,
                     " to be text or integers, got ", key.tagKind());
    const std::string last = key.isString() ? key.toStringRef() : std::to_string(key.toInt());
    tree.insert(key, data_of(entry.value(), name + "." + last));
  }
  return tree;
}

IValue take(const Tree& tree, const std::string& key) {
  const auto found = tree.find(key);
  TORCH_CHECK(found != tree.end(), "amp::load: expected the checkpoint to contain \"", key,
              "\", but it is missing: the file is damaged or was not written by amp::save");
  return found->value();
}

Tree as_tree(const IValue& value, const std::string& what) {
  check_kind(value.isGenericDict(), what, "a dictionary", value);
  return value.toGenericDict();
}

std::vector<IValue> as_list(const IValue& value, const std::string& what) {
  check_kind(value.isList() || value.isTuple(), what, "a list", value);
  if (value.isList()) return value.toListRef().vec();
  return value.toTupleRef().elements();
}

Tensor as_tensor(const IValue& value, const std::string& what) {
  check_kind(value.isTensor() && value.toTensor().defined(), what, "a tensor", value);
  return value.toTensor();
}

std::string as_text(const IValue& value, const std::string& what) {
  check_kind(value.isString(), what, "text", value);
  return value.toStringRef();
}

double as_double(const IValue& value, const std::string& what) {
  const IValue number = unwrapped(value);
  check_kind(number.isDouble() || number.isInt() || number.isBool(), what, "a number", value);
  const double result = number.isBool() ? number.toBool() : number.toScalar().toDouble();
  TORCH_CHECK(!std::isnan(result), "amp::load: expected \"", what,
              "\" of the checkpoint to be a number, got nan");
  return result;
}

int64_t as_int(const IValue& value, const std::string& what) {
  constexpr double kLargest = 1LL << 53;  // beyond it, a double is not exact
  const double number = as_double(value, what);
  TORCH_CHECK(std::trunc(number) == number && std::abs(number) <= kLargest,
              "amp::load: expected \"", what, "\" of the checkpoint to be an integer, got ",
              number);
  return static_cast<int64_t>(number);
}

}  // namespace torchamp::checkpoint
