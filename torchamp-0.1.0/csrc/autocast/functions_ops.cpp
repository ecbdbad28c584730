// The part of functions.h for ops: registrations by name.
#include <torch/library.h>
#include <torchamp/functions.h>

#include <mutex>
#include <string>

#include "autocast/rules.h"

namespace torchamp {
namespace {

namespace rules = autocast_rules;

c10::OperatorHandle find(const char* function, const std::string& name) {
  const size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  const auto op = c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
  TORCH_CHECK_VALUE(op, function,
                    ": expected name to be that of an op, \"space::op\" or "
                    "\"space::op.overload\", got \"",
                    name, "\", which is not registered");
  return *op;
}

void check_has_no_rule(const char* function, const std::string& name, c10::DispatchKey key) {
  const bool is_torchs = name.rfind("aten::", 0) == 0;
  TORCH_CHECK_VALUE(!is_torchs && !find(function, name).hasKernelForDispatchKey(key), function,
                    ": expected an op without an autocast rule, got \"", name,
                    "\"; wrap the call, for example with half_function");
}

/// Kernels stay for the rest of the process: ops may be called while statics are destroyed.
template <rules::Rule rule>
void register_op(const char* function, const std::string& name) {
  static std::mutex mutex;
  static auto& libraries = *new std::vector<torch::Library>();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto types = {c10::kCPU, c10::kCUDA};
  find(function, name);
  for (const auto type : types) check_has_no_rule(function, name, rules::key_of(type));
  for (const auto type : types) {
    const std::string space = name.substr(0, name.find("::"));
    auto& library = libraries.emplace_back(torch::Library::IMPL, space, rules::key_of(type),
                                           __FILE__, __LINE__);
    library.impl(
        name.c_str(),
        torch::CppFunction::makeFromBoxedFunction<&rules::kernel<rule, &rules::scope_type>>());
  }
}

}  // namespace

void register_half_op(const std::string& name) {
  register_op<rules::to_low_precision>("register_half_op", name);
}

void register_bfloat16_op(const std::string& name) {
  register_op<rules::to_bfloat16>("register_bfloat16_op", name);
}

void register_float_op(const std::string& name) {
  register_op<rules::to_float32>("register_float_op", name);
}

void register_promote_op(const std::string& name) {
  register_op<rules::to_widest>("register_promote_op", name);
}

}  // namespace torchamp
