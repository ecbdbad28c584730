#include "ops/tuning.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "cuda/tuning.h"

namespace torchamp {
namespace {

const TuningField& field_of(const std::vector<TuningField>& fields, const std::string& name) {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const TuningField& field) { return field.name == name; });
  TORCH_CHECK_VALUE(found != fields.end(),
                    "set_tuning: expected name to be one of tuning_fields(), got ", name);
  return *found;
}

}  // namespace

std::vector<TuningField> tuning_fields() {
  const cuda::Tuning& now = cuda::tuning();
#define TORCHAMP_FIELD(name, ...) {#name, now.name, {__VA_ARGS__}},
  return {TORCHAMP_TUNING_FIELDS(TORCHAMP_FIELD)};
#undef TORCHAMP_FIELD
}

void set_tuning(const std::string& name, int64_t value) {
  const std::vector<TuningField> fields = tuning_fields();
  const auto& choices = field_of(fields, name).choices;
  TORCH_CHECK_VALUE(std::count(choices.begin(), choices.end(), value) == 1, "set_tuning: expected ",
                    name, " to be one of ", c10::Join(", ", choices), ", got ", value);
#define TORCHAMP_FIELD(field, ...) \
  if (name == #field) cuda::tuning().field = static_cast<int32>(value);
  TORCHAMP_TUNING_FIELDS(TORCHAMP_FIELD)
#undef TORCHAMP_FIELD
}

}  // namespace torchamp
