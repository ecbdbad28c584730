#include "autocast/ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "autocast/lists.h"
#include "autocast/open_autocast.h"
#include "autocast/rules.h"
#include "autocast/unboxed_ops.h"

namespace torchamp {
namespace {

namespace rules = autocast_rules;

c10::OperatorName operator_name(const std::string& name) {
  const auto dot = name.find('.');
  return {"aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)};
}

struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

/// O1's and O4's type; float32 in a scope of the program's own, where torch's rule casts to it.
std::optional<c10::ScalarType> type_under_o1(c10::DeviceType device_type) {
  return casting_to(device_type).value_or(c10::kFloat);
}

/// O4's type; at O1 none.
std::optional<c10::ScalarType> bfloat16_alone(c10::DeviceType device_type) {
  const auto dtype = casting_to(device_type);
  return dtype == c10::kBFloat16 ? dtype : std::nullopt;
}

/// The kernels of one device type, registered for as long as this lives.
class Registration {
 public:
  explicit Registration(c10::DeviceType device_type)
      : key_(rules::key_of(device_type)),
        library_(torch::Library::IMPL, "aten", key_, __FILE__, __LINE__) {
    namespace lists = autocast_lists;
    add<rules::to_low_precision>(lists::kLowPrecision);
    if (device_type == c10::kCPU) {
      add<rules::to_low_precision>(lists::kRecurrent);
    } else {
      add<rules::to_bfloat16_in_one_piece, &bfloat16_alone>(lists::kRecurrent);
    }
    add<rules::to_float32>(lists::kFloat32, &add_unboxed_to_float32);
    add<rules::to_widest>(lists::kWidest, &add_unboxed_to_widest);
    add<rules::to_type_of_self>(lists::kTypeOfSelf);
    add<rules::refuse_16_bit_self>(lists::kFloat32InPlace);
    if (device_type == c10::kCPU) replace_cross_entropy();
  }

 private:
  template <rules::Rule rule, rules::LowPrecision low_precision = &casting_to, typename Names>
  void add(const Names& names, decltype(&add_unboxed_to_widest) add_unboxed = nullptr) {
    for (const char* name : names) {
      const auto op = c10::Dispatcher::singleton().findSchema(operator_name(name));
      if (!op || op->hasKernelForDispatchKey(key_)) continue;
      if (add_unboxed != nullptr && add_unboxed(library_, key_, name)) continue;
      library_.impl(
          name, torch::CppFunction::makeFromBoxedFunction<&rules::kernel<rule, low_precision>>());
    }
  }

  /// The only rule of torch that is replaced: on the CPU it casts what saturates in 16 bits. On
  /// CUDA torch refuses it.
  void replace_cross_entropy() {
    Silence warnings;
    const c10::WarningUtils::WarningHandlerGuard of_a_replaced_kernel(&warnings);
    library_.impl("binary_cross_entropy",
                  torch::CppFunction::makeFromBoxedFunction<
                      &rules::kernel<rules::refuse_16_bit, &type_under_o1>>());
  }

  c10::DispatchKey key_;
  torch::Library library_;
};

/// The state shared by all AutocastOps of a device type.
struct Shared {
  int holders = 0;
  std::unique_ptr<Registration> registration;
};

std::mutex shared_mutex;

/// Never destroyed: a model may be a global, which outlives what the first initialize makes.
Shared& shared_of(c10::DeviceType device_type) {
  static auto& shared = *new std::map<c10::DeviceType, Shared>;
  return shared[device_type];
}

}  // namespace

AutocastOps::AutocastOps(c10::DeviceType device_type) : device_type_(device_type) {
  if (device_type != c10::kCPU && device_type != c10::kCUDA) return;
  const std::lock_guard<std::mutex> lock(shared_mutex);
  Shared& shared = shared_of(device_type);
  if (!shared.registration) shared.registration = std::make_unique<Registration>(device_type);
  ++shared.holders;
}

AutocastOps::~AutocastOps() {
  if (device_type_ != c10::kCPU && device_type_ != c10::kCUDA) return;
  const std::lock_guard<std::mutex> lock(shared_mutex);
  Shared& shared = shared_of(device_type_);
  if (--shared.holders == 0) shared.registration.reset();
}

}  // namespace torchamp
