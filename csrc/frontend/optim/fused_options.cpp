#include <torch/serialize/archive.h>
#include <torchamp/optim/fused_options.h>

#include <typeinfo>

#include "frontend/optim/columns.h"

namespace torchamp::optim {
namespace {

using c10::IValue;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

/// The optimizer and option of a checked value, for messages.
struct Where {
  const char* optimizer;
  const OptionField& field;
};

void check_value(const Where& where, double value) {
  TORCH_CHECK_VALUE(value >= where.field.minimum, where.optimizer, ": expected ", where.field.name,
                    " to be at least ", where.field.minimum, ", got ", value);
}

void check_value(const Where&, bool) {}

void check_value(const Where& where, const Limit& limit) {
  if (limit) check_value(where, *limit);
}

void check_beta(const Where& where, int i, double beta) {
  TORCH_CHECK_VALUE(0.0 <= beta && beta < 1.0, where.optimizer, ": expected ", where.field.name,
                    "[", i, "] to be in [0, 1), got ", beta);
}

void check_value(const Where& where, const Betas& betas) {
  check_beta(where, 0, std::get<0>(betas));
  check_beta(where, 1, std::get<1>(betas));
}

}  // namespace

std::array<double, kHyperparameters> FusedOptions::hyper() const {
  std::array<double, kHyperparameters> row{};
  double* column = row.data();
  for (const OptionField& field : fields()) {
    std::visit([&](auto* option) { column = put(option->value, column); }, field.option);
  }
  return row;
}

void FusedOptions::check() const {
  for (const OptionField& field : fields()) {
    const Where where{optimizer_name(), field};
    std::visit([&](auto* option) { check_value(where, option->value); }, field.option);
  }
}

void FusedOptions::inherit(const FusedOptions& defaults) {
  const auto theirs = defaults.fields();
  auto ours = fields();
  for (size_t i = 0; i < ours.size(); ++i) {
    std::visit(
        [&](auto* option) {
          if (!option->given) *option = *std::get<decltype(option)>(theirs[i].option);
        },
        ours[i].option);
  }
}

double FusedOptions::get_lr() const {
  return std::get<Option<double>*>(fields().front().option)->value;
}

void FusedOptions::set_lr(const double lr) {
  *std::get<Option<double>*>(fields().front().option) = {lr, true};
}

void FusedOptions::serialize(InputArchive& archive) {
  for (const OptionField& field : fields()) {
    IValue value;
    const bool found = archive.try_read(field.name, value);
    TORCH_CHECK_VALUE(found || field.ours_alone, optimizer_name(),
                      ": expected the file's options to contain \"", field.name,
                      "\", but it is missing: another kind of optimizer wrote it");
    if (!found) continue;
    std::visit([&](auto* option) { option->value = value.to<decltype(option->value)>(); },
               field.option);
  }
}

void FusedOptions::serialize(OutputArchive& archive) const {
  for (const OptionField& field : fields()) {
    std::visit([&](auto* option) { archive.write(field.name, IValue(option->value)); },
               field.option);
  }
}

bool operator==(const FusedOptions& left, const FusedOptions& right) {
  return typeid(left) == typeid(right) && left.hyper() == right.hyper();
}

}  // namespace torchamp::optim
