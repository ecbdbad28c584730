#include "checkpoint/field.h"

#include <ATen/ops/scalar_tensor.h>

namespace torchamp::checkpoint {

using at::Tensor;
using c10::IValue;

namespace {

IValue saved_value(double value) {
  return value;
}
IValue saved_value(bool value) {
  return value;
}
/// Counts of steps are float32 tensors in Python.
IValue saved_value(int64_t value) {
  return at::scalar_tensor(value, at::kFloat);
}
IValue saved_value(const Tensor& value) {
  return value.defined() ? IValue(value.detach()) : IValue();
}
IValue saved_value(const optim::Betas& value) {
  return c10::ivalue::Tuple::create({std::get<0>(value), std::get<1>(value)});
}
IValue saved_value(const std::optional<double>& value) {
  return value ? IValue(*value) : IValue();
}

void read_value(double& target, const IValue& value, const std::string& what) {
  target = as_double(value, what);
}
void read_value(bool& target, const IValue& value, const std::string& what) {
  target = as_double(value, what) != 0.0;
}
void read_value(int64_t& target, const IValue& value, const std::string& what) {
  target = as_int(value, what);
}
void read_value(Tensor& target, const IValue& value, const std::string& what) {
  target = as_tensor(value, what);
}
void read_value(optim::Betas& target, const IValue& value, const std::string& what) {
  const auto betas = as_list(value, what);
  TORCH_CHECK(betas.size() == 2, "amp::load: expected 2 numbers in \"", what, "\", got ",
              betas.size());
  target = {as_double(betas[0], what), as_double(betas[1], what)};
}
void read_value(std::optional<double>& target, const IValue& value, const std::string& what) {
  target.reset();
  if (!value.isNone()) target = as_double(value, what);
}

}  // namespace

IValue saved_field(const Field& field) {
  return std::visit([](const auto* value) { return saved_value(*value); }, field.value);
}

void read_field(const Field& field, const IValue& value, const std::string& what) {
  std::visit([&](auto* target) { read_value(*target, value, what); }, field.value);
}

}  // namespace torchamp::checkpoint
