#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torchamp/overflow_trace.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <ostream>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torchamp {
namespace {

/// In which tensors are examined: unseen by the trace, by autograd and by autocast.
struct Unobserved {
  at::RecordFunctionGuard records{false};
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// What the trace has found. Callbacks are plain functions, so there is one for the process.
struct Findings {
  std::mutex mutex;
  bool is_open = false;
  int64_t generation = 0;  ///< the number of traces so far
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  std::optional<OverflowOrigin> origin;
  std::unordered_map<int64_t, std::string> scopes;  ///< of forwards' ops, by sequence number
};

Findings& findings() {
  static Findings instance;
  return instance;
}

struct Scope {
  std::string name;
  bool is_backward;
};

/// The scopes that this thread has entered since the trace began, the innermost last.
std::vector<Scope>& open_scopes() {
  thread_local std::vector<Scope> instance;
  thread_local int64_t generation = 0;
  const std::lock_guard<std::mutex> lock(findings().mutex);
  if (std::exchange(generation, findings().generation) != findings().generation) instance.clear();
  return instance;
}

/// Of an op that has begun.
struct Begun : at::ObserverContext {
  bool has_finite_inputs = true;
  double magnitude = 0;
};

bool is_examined(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() && tensor.layout() == at::kStrided &&
         tensor.numel() > 0 && !tensor.is_meta();
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  return {};
}

bool is_infinite_number(const c10::IValue& value) {
  return value.isDouble() && !std::isfinite(value.toDouble());
}

bool is_finite(const at::Tensor& tensor) {
  return at::isfinite(tensor).all().item<bool>();
}

std::unique_ptr<Begun> examine_inputs(at::ArrayRef<const c10::IValue> inputs) {
  const Unobserved guard;
  auto begun = std::make_unique<Begun>();
  begun->has_finite_inputs = std::none_of(inputs.begin(), inputs.end(), is_infinite_number);
  for (const auto& input : inputs) {
    for (const auto& tensor : tensors_of(input)) {
      if (!begun->has_finite_inputs || !is_examined(tensor)) continue;
      begun->has_finite_inputs = is_finite(tensor);
      begun->magnitude = std::max(begun->magnitude, tensor.abs().max().item().toDouble());
    }
  }
  return begun;
}

std::optional<at::Tensor> first_infinite(const std::vector<c10::IValue>& outputs) {
  for (const auto& output : outputs) {
    for (const auto& tensor : tensors_of(output)) {
      if (is_examined(tensor) && !is_finite(tensor)) return tensor;
    }
  }
  return std::nullopt;
}

/// "mul" of "aten::mul".
std::string short_name(const std::string& name) {
  const size_t colon = name.rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

/// Whether what an op returns has not been written yet.
bool allocates(const std::string& op) {
  return op.rfind("empty", 0) == 0 || op.rfind("new_empty", 0) == 0;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto& open = open_scopes();
  const std::string scope = open.empty() ? "" : open.back().name;
  Findings& found = findings();
  if (function.scope() == at::RecordScope::FUNCTION) {
    const std::unique_lock<std::mutex> lock(found.mutex);
    if (found.origin) return nullptr;
    if (at::GradMode::is_enabled()) found.scopes[function.seqNr()] = scope;
  } else {
    const bool is_backward = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
    const std::lock_guard<std::mutex> lock(found.mutex);
    const auto known = found.scopes.find(function.seqNr());
    const std::string of_forward = known == found.scopes.end() ? "" : known->second;
    open.push_back({is_backward ? of_forward : std::string(function.name()), is_backward});
    return nullptr;
  }
  return examine_inputs(function.inputs());
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  auto& open = open_scopes();
  if (function.scope() != at::RecordScope::FUNCTION) {
    if (!open.empty()) open.pop_back();  // else it began before the trace
    return;
  }
  const auto* begun = static_cast<const Begun*>(context);
  const std::string op = short_name(function.name());
  if (begun == nullptr || !begun->has_finite_inputs || allocates(op)) return;
  const Unobserved guard;
  const auto tensor = first_infinite(function.outputs());
  if (!tensor) return;
  Findings& found = findings();
  const std::lock_guard<std::mutex> lock(found.mutex);
  if (found.origin) return;
  const auto is_backward = [](const Scope& scope) { return scope.is_backward; };
  found.origin = OverflowOrigin{op,
                                open.empty() ? "" : open.back().name,
                                std::any_of(open.begin(), open.end(), is_backward),
                                at::isnan(*tensor).any().item<bool>(),
                                tensor->scalar_type(),
                                begun->magnitude};
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const OverflowOrigin& origin) {
  stream << (origin.op == "_to_copy" ? "a cast" : origin.op);
  if (!origin.scope.empty()) stream << " of \"" << origin.scope << '"';
  return stream << " in the " << (origin.is_backward ? "backward" : "forward") << " makes "
                << (origin.is_nan ? "nan" : "inf") << " in " << origin.dtype << " of inputs up to "
                << origin.magnitude;
}

OverflowTrace::OverflowTrace() {
  Findings& found = findings();
  const std::lock_guard<std::mutex> lock(found.mutex);
  TORCH_CHECK(!found.is_open,
              "OverflowTrace: expected one at a time, got a second; destroy the first");
  found.is_open = true;
  ++found.generation;
  found.origin.reset();
  found.scopes.clear();
  found.handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&begin, &end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::USER_SCOPE}));
}

OverflowTrace::~OverflowTrace() {
  at::removeCallback(findings().handle);
  const std::lock_guard<std::mutex> lock(findings().mutex);
  findings().is_open = false;
}

std::optional<OverflowOrigin> OverflowTrace::origin() const {
  const std::lock_guard<std::mutex> lock(findings().mutex);
  return findings().origin;
}

void OverflowTrace::reset() {
  const std::lock_guard<std::mutex> lock(findings().mutex);
  findings().origin.reset();
  findings().scopes.clear();
}

}  // namespace torchamp
