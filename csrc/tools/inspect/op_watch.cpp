#include "inspect/op_watch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torchamp/detail/own_of_thread.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace torchamp::inspect {
namespace {

/// torch's callbacks are plain functions, so there is one watch for the process.
struct OpenWatch {
  std::mutex mutex;
  std::shared_ptr<OpObserver> observer;  ///< null: none is open
  int64_t generation = 0;                ///< the number of watches so far
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  std::unordered_map<int64_t, std::string> scopes;  ///< of forwards' ops, by sequence number
};

OpenWatch& open_watch() {
  static auto& instance = *new OpenWatch;
  return instance;
}

struct Scope {
  std::string name;
  bool is_backward;
};

/// The scopes that this thread has entered since the watch began, the innermost last.
std::vector<Scope>& open_scopes() {
  auto& instance = detail::own_of_thread<std::vector<Scope>>();
  thread_local int64_t generation = 0;
  const std::lock_guard<std::mutex> lock(open_watch().mutex);
  if (std::exchange(generation, open_watch().generation) != open_watch().generation) {
    instance.clear();
  }
  return instance;
}

std::string short_name(const std::string& name) {
  const size_t colon = name.rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

WatchedOp watched(const at::RecordFunction& record, const std::vector<Scope>& open) {
  const auto is_backward = [](const Scope& scope) { return scope.is_backward; };
  return {short_name(record.name()), open.empty() ? "" : open.back().name,
          std::any_of(open.begin(), open.end(), is_backward), record};
}

void enter_scope(const at::RecordFunction& record, std::vector<Scope>& open) {
  const bool is_backward = record.scope() == at::RecordScope::BACKWARD_FUNCTION;
  OpenWatch& watch = open_watch();
  const std::lock_guard<std::mutex> lock(watch.mutex);
  const auto known = watch.scopes.find(record.seqNr());
  const std::string of_forward = known == watch.scopes.end() ? "" : known->second;
  open.push_back({is_backward ? of_forward : std::string(record.name()), is_backward});
}

/// An observer's context of an op that it saw begin. By the op's end another one may be open.
struct Begun : at::ObserverContext {
  std::shared_ptr<OpObserver> observer;
  std::unique_ptr<at::ObserverContext> context;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& record) {
  auto& open = open_scopes();
  if (record.scope() != at::RecordScope::FUNCTION) {
    enter_scope(record, open);
    return nullptr;
  }
  const WatchedOp op = watched(record, open);
  auto begun = std::make_unique<Begun>();
  {
    OpenWatch& watch = open_watch();
    const std::lock_guard<std::mutex> lock(watch.mutex);
    begun->observer = watch.observer;
    if (at::GradMode::is_enabled()) watch.scopes[record.seqNr()] = op.scope;
  }
  if (begun->observer == nullptr) return nullptr;
  begun->context = begun->observer->before(op);
  return begun;
}

void end(const at::RecordFunction& record, at::ObserverContext* context) {
  auto& open = open_scopes();
  if (record.scope() != at::RecordScope::FUNCTION) {
    if (!open.empty()) open.pop_back();  // else it began before the watch
    return;
  }
  if (context == nullptr) return;  // it began before the watch
  const auto& [observer, begun] = *static_cast<const Begun*>(context);
  {
    const std::lock_guard<std::mutex> lock(open_watch().mutex);
    if (observer != open_watch().observer) return;
  }
  observer->after(watched(record, open), begun.get());
}

/// How many ops whose results count run in this thread, one inside of the other.
int& open_counted() {
  thread_local int count = 0;
  return count;
}

/// One of them. Destroyed with the op's record, also where the watch has ended meanwhile.
struct Counted : at::ObserverContext {
  Counted() { ++open_counted(); }
  ~Counted() override { --open_counted(); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};

/// Whether an op is made of others that autograd differentiates, as linear is of addmm.
bool is_composite(const at::RecordFunction& record) {
  const auto name = record.operator_name();
  if (!name) return true;  // a label, no op
  const auto found = c10::Dispatcher::singleton().findSchema(*name);
  return !found || found->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

/// Whether an op returns a view of its input. One that returns the input itself has written it.
bool is_view(const at::RecordFunction& record) {
  const auto schema = record.operator_schema();
  if (!schema || schema->returns().empty()) return false;
  const auto* alias = schema->returns().front().alias_info();
  return alias != nullptr && !alias->isWrite();
}

}  // namespace

std::unique_ptr<at::ObserverContext> CountedOps::before(const WatchedOp& op) {
  if (is_composite(op.record)) return nullptr;
  return std::make_unique<Counted>();
}

void CountedOps::after(const WatchedOp& op, const at::ObserverContext* begun) {
  if (begun == nullptr) return;
  const int outer = open_counted() - 1;
  const bool is_autocasts = outer == 1 && op.name == "_to_copy";  // of an op's argument, inside it
  if (outer > 0 && !is_autocasts) return;
  if (is_view(op.record) || allocates(op.name) || std::uncaught_exceptions() > 0) return;
  see(op);
}

OpWatch::OpWatch(std::shared_ptr<OpObserver> observer, const char* who) {
  OpenWatch& watch = open_watch();
  const std::lock_guard<std::mutex> lock(watch.mutex);
  TORCH_CHECK(watch.observer == nullptr, who,
              ": expected one OverflowTrace or preflight at a time, got a second");
  watch.observer = std::move(observer);
  ++watch.generation;
  watch.scopes.clear();
  watch.handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&begin, &end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::USER_SCOPE}));
}

OpWatch::~OpWatch() {
  OpenWatch& watch = open_watch();
  at::removeCallback(watch.handle);
  const std::lock_guard<std::mutex> lock(watch.mutex);
  watch.observer.reset();
}

bool is_examined(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() && tensor.layout() == at::kStrided &&
         tensor.numel() > 0 && !tensor.is_meta() &&
         !c10::isFloat8Type(tensor.scalar_type());  // of which torch cannot tell
}

bool allocates(const std::string& op) {
  return op.rfind("empty", 0) == 0 || op.rfind("new_empty", 0) == 0;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  return {};
}

}  // namespace torchamp::inspect
