#include "autocast/open_autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <string_view>
#include <type_traits>
#include <utility>

#include "autocast/ops.h"

namespace torchamp {

using at::autocast::get_autocast_dtype;
using at::autocast::is_autocast_cache_enabled;
using at::autocast::is_autocast_enabled;
using at::autocast::set_autocast_cache_enabled;
using at::autocast::set_autocast_dtype;
using at::autocast::set_autocast_enabled;

struct OpenAutocast::Entry {
  std::vector<c10::DeviceType> device_types;
  c10::ScalarType dtype;
  std::list<AutocastOps> ops;
  std::atomic<bool> open{true};
  at::CallbackHandle end_of_casts = at::INVALID_CALLBACK_HANDLE;

  ~Entry() {
    if (end_of_casts != at::INVALID_CALLBACK_HANDLE) at::removeCallback(end_of_casts);
  }
};

namespace {

/// A device type's state before the first OpenAutocast of a thread.
struct Before {
  bool enabled;
  c10::ScalarType dtype;
};

/// OpenAutocast's state of one thread.
struct ThreadState {
  std::vector<std::shared_ptr<OpenAutocast::Entry>> entries;
  std::map<c10::DeviceType, Before> before;
  std::optional<bool> cache_before;  ///< while entries are open
  bool has_float8 = false;           ///< of an entry; threads of a backward have their caller's key
  int shields = 0;
  at::CallbackHandle node_shield = at::INVALID_CALLBACK_HANDLE;
};

void end_casts();

/// The calling thread's. Null before its first use, and at the thread's end, when the thread's
/// variables and the program's statics may still be destroyed.
thread_local ThreadState* current = nullptr;
/// Whether this thread's variables are destroyed, torch's callbacks among them. Statics may not be.
thread_local bool has_ended = false;

ThreadState& state() {
  if (current != nullptr) return *current;
  at::hasThreadLocalCallbacks();  // makes torch's variables, which are to be destroyed later
  current = new ThreadState;
  struct End {
    ~End() {
      end_casts();
      delete std::exchange(current, nullptr);
      has_ended = true;
    }
  };
  thread_local const End end;  // NOLINT(clang-diagnostic-exit-time-destructors)
  return *current;
}

/// A predicate: whether an entry casts on `device_type`.
auto casts(c10::DeviceType device_type) {
  return [device_type](const std::shared_ptr<OpenAutocast::Entry>& entry) {
    const auto& types = entry->device_types;
    return std::find(types.begin(), types.end(), device_type) != types.end();
  };
}

std::unique_ptr<at::ObserverContext> shield_node(const at::RecordFunction& node);

/// Each node of a backward is uncast, whichever call of autograd's engine runs it, in this thread
/// or in those that work for it.
void shield_nodes() {
  auto callback = at::RecordFunctionCallback(shield_node);
  callback.scopes({at::RecordScope::BACKWARD_FUNCTION});
  state().node_shield = at::addThreadLocalCallback(callback);
}

void turn_on(c10::DeviceType device_type, c10::ScalarType dtype) {
  const Before before{is_autocast_enabled(device_type), get_autocast_dtype(device_type)};
  state().before.emplace(device_type, before);
  set_autocast_enabled(device_type, true);
  set_autocast_dtype(device_type, dtype);
}

void turn_off(c10::DeviceType device_type) {
  const Before before = state().before.at(device_type);
  set_autocast_enabled(device_type, before.enabled);
  set_autocast_dtype(device_type, before.dtype);
  state().before.erase(device_type);
}

bool opens_float8(const std::shared_ptr<OpenAutocast::Entry>& entry) {
  return c10::isFloat8Type(entry->dtype);
}

/// What entries of all kinds have in common.
void begin_entries() {
  if (!state().cache_before) {
    state().cache_before = is_autocast_cache_enabled();
    if (!has_ended) shield_nodes();
  }
  set_autocast_cache_enabled(false);
}

/// Once the first was added, or one removed.
void follow_entries() {
  const auto& entries = state().entries;
  const bool has_float8 = std::any_of(entries.begin(), entries.end(), opens_float8);
  if (std::exchange(state().has_float8, has_float8) != has_float8) {
    c10::impl::tls_set_dispatch_key_included(kFloat8Key, has_float8);
    c10::impl::tls_set_dispatch_key_excluded(kFloat8Key, !has_float8);
  }
  if (!entries.empty() || !state().cache_before) return;
  set_autocast_cache_enabled(*std::exchange(state().cache_before, std::nullopt));
  if (!has_ended) at::removeCallback(state().node_shield);
}

void end_casts() {
  state().entries.clear();
  while (!state().before.empty()) turn_off(state().before.begin()->first);
  follow_entries();
}

/// A forked worker inherits the thread's state, but must not cast.
void watch_for_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, end_casts);
  (void)registered;
}

}  // namespace

OpenAutocast::OpenAutocast(std::vector<c10::DeviceType> device_types, c10::ScalarType dtype) {
  watch_for_forks();
  update();
  for (const auto& open : state().entries) {
    if (c10::isFloat8Type(dtype) || opens_float8(open)) continue;
    TORCH_CHECK(open->dtype == dtype, "initialize: autocast to ", open->dtype,
                " is already active for a model in this thread, cannot also autocast to ", dtype,
                "; close that model first, or use it in another thread");
  }
  entry_ = std::make_shared<Entry>();
  entry_->device_types = std::move(device_types);
  entry_->dtype = dtype;
  for (const auto device_type : entry_->device_types) entry_->ops.emplace_back(device_type);
  state().entries.push_back(entry_);
  begin_entries();
  for (const auto device_type : entry_->device_types) turn_on(device_type, dtype);
  follow_entries();
}

namespace {

bool has_closed_entries() {
  const auto& entries = state().entries;
  return std::any_of(entries.begin(), entries.end(),
                     [](const auto& entry) { return !entry->open; });
}

/// Whether a guard, of an op that calls another or of the program, will restore autocast's state.
bool is_state_guarded() {
  const auto excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  const auto& before = state().before;
  return excluded.has_any(c10::autograd_dispatch_keyset_with_ADInplaceOrView) ||
         std::any_of(before.begin(), before.end(),
                     [](const auto& type) { return !is_autocast_enabled(type.first); });
}

/// An op that a thread runs after another thread has closed what casts here. Its autocast kernel is
/// chosen already, and casts to float32.
class OpAfterClose : public at::ObserverContext {
 public:
  OpAfterClose() {
    std::vector<c10::DeviceType> cast;
    for (const auto& [device_type, before] : state().before) cast.push_back(device_type);
    if (!is_state_guarded()) OpenAutocast::update();
    for (const auto device_type : cast) {
      const auto& entries = state().entries;
      const bool is_cast = std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
        return entry->open && casts(device_type)(entry);
      });
      if (is_cast) continue;
      dtypes_.emplace_back(device_type, get_autocast_dtype(device_type));
      set_autocast_dtype(device_type, c10::kFloat);
    }
  }
  ~OpAfterClose() override {
    for (const auto& [device_type, dtype] : dtypes_) set_autocast_dtype(device_type, dtype);
  }
  OpAfterClose(const OpAfterClose&) = delete;
  OpAfterClose& operator=(const OpAfterClose&) = delete;

 private:
  std::vector<std::pair<c10::DeviceType, c10::ScalarType>> dtypes_;
};

at::RecordFunctionCallback ops_after_close() {
  at::RecordFunctionCallback callback(
      [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        return has_closed_entries() ? std::make_unique<OpAfterClose>() : nullptr;
      });
  return callback.scopes({at::RecordScope::FUNCTION});
}

}  // namespace

OpenAutocast::~OpenAutocast() {
  close();
}

void OpenAutocast::close() {
  if (entry_->open.exchange(false)) {
    entry_->ops.clear();
    const bool is_open_here =
        current != nullptr && std::count(current->entries.begin(), current->entries.end(), entry_);
    const bool is_open_elsewhere = !opens_float8(entry_) && !is_open_here && entry_.use_count() > 1;
    if (is_open_elsewhere) entry_->end_of_casts = at::addGlobalCallback(ops_after_close());
  }
  update();
}

void OpenAutocast::update() {
  if (current == nullptr) return;
  auto& entries = current->entries;
  const auto is_closed = [](const auto& entry) { return !entry->open; };
  entries.erase(std::remove_if(entries.begin(), entries.end(), is_closed), entries.end());
  std::vector<c10::DeviceType> unwanted;
  for (const auto& [device_type, before] : state().before) {
    if (std::none_of(entries.begin(), entries.end(), casts(device_type))) {
      unwanted.push_back(device_type);
    }
  }
  for (const auto device_type : unwanted) turn_off(device_type);
  follow_entries();
}

OpenAutocast::Entries OpenAutocast::open_in_this_thread() {
  update();
  return state().entries;
}

JoinAutocast::JoinAutocast(const OpenAutocast& opened)
    : JoinAutocast(OpenAutocast::Entries{opened.entry_}) {}

JoinAutocast::JoinAutocast(const OpenAutocast::Entries& opened) {
  OpenAutocast::update();
  if (state().shields > 0) return;
  auto& entries = state().entries;
  const bool casts_already = !std::all_of(entries.begin(), entries.end(), opens_float8);
  for (const auto& entry : opened) {
    const bool is_here = std::count(entries.begin(), entries.end(), entry) > 0;
    if (!entry->open || is_here || (casts_already && !opens_float8(entry))) continue;
    joined_.push_back(entry);
    entries.push_back(entry);
    begin_entries();
    for (const auto device_type : entry->device_types) {
      const bool is_refused = is_inside_scope() && !is_autocast_enabled(device_type);
      if (!is_refused) turn_on(device_type, entry->dtype);
    }
  }
  if (!joined_.empty()) follow_entries();
}

JoinAutocast::~JoinAutocast() {
  if (joined_.empty()) return;
  auto& entries = state().entries;
  for (const auto& entry : joined_) {
    const auto found = std::find(entries.begin(), entries.end(), entry);
    if (found != entries.end()) entries.erase(found);
  }
  OpenAutocast::update();
}

namespace {

/// Hands the entries of the thread that called a backward to all threads that work for it.
struct BackwardInfo : c10::DebugInfoBase {
  OpenAutocast::Entries entries;
};

/// BackwardInfo's slot: a number up to torch 2.11, the address of a name since.
template <class Kind>
Kind backward_info_kind() {
  static constexpr std::string_view kName = "torchamp backward";
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(0xA0);
  } else {
    return Kind(&kName);
  }
}

/// Null outside of a ShieldBackward.
const BackwardInfo* backward_info() {
  const auto kind = backward_info_kind<c10::DebugInfoKind>();
  return static_cast<const BackwardInfo*>(c10::ThreadLocalDebugInfo::get(kind));
}

/// This thread's entries; if it has none, those of the thread whose backward it works for.
const OpenAutocast::Entries& entries_here() {
  const BackwardInfo* info = backward_info();
  return state().entries.empty() && info != nullptr ? info->entries : state().entries;
}

bool is_open(c10::DeviceType device_type) {
  const auto& entries = entries_here();
  return std::any_of(entries.begin(), entries.end(), casts(device_type));
}

/// Whether the program opened the innermost torch.autocast. A checkpoint does so in a backward, to
/// cast as the forward did.
bool is_programs_own(c10::DeviceType device_type) {
  if (!is_inside_scope()) return false;
  return backward_info() == nullptr ||
         get_autocast_dtype(device_type) != entries_here().front()->dtype;
}

}  // namespace

std::optional<c10::ScalarType> casting_to(c10::DeviceType device_type) {
  if (!is_autocast_enabled(device_type) || !is_open(device_type)) return {};
  return get_autocast_dtype(device_type);
}

bool is_float8_open() {
  return c10::impl::tls_is_dispatch_key_included(kFloat8Key);
}

bool is_float8_on() {
  return is_float8_open() && !is_autocast_cache_enabled();
}

disable_casts::disable_casts() {
  OpenAutocast::update();
  ++state().shields;
  turns_float8_off_ = is_float8_on();
  if (turns_float8_off_) set_autocast_cache_enabled(true);
  for (const auto& entry : entries_here()) {
    for (const auto device_type : entry->device_types) {
      if (!is_autocast_enabled(device_type) || is_programs_own(device_type)) continue;
      disabled_.push_back(device_type);
      set_autocast_enabled(device_type, false);
    }
  }
}

disable_casts::~disable_casts() {
  --state().shields;
  for (const auto device_type : disabled_) {
    if (is_open(device_type)) set_autocast_enabled(device_type, true);
  }
  if (turns_float8_off_ && is_float8_open()) set_autocast_cache_enabled(false);
}

namespace {

/// One node of a backward.
class ShieldedNode : public at::ObserverContext {
 public:
  ShieldedNode() {
    if (!entries_here().empty()) return;
    for (const auto device_type : {c10::kCPU, c10::kCUDA}) {
      if (!is_autocast_enabled(device_type)) continue;
      of_another_thread_.push_back(device_type);
      set_autocast_enabled(device_type, false);
    }
  }
  ~ShieldedNode() override {
    for (const auto device_type : of_another_thread_) set_autocast_enabled(device_type, true);
  }
  ShieldedNode(const ShieldedNode&) = delete;
  ShieldedNode& operator=(const ShieldedNode&) = delete;

 private:
  disable_casts shield_;
  std::vector<c10::DeviceType> of_another_thread_;  ///< that called the engine
};

std::unique_ptr<at::ObserverContext> shield_node(const at::RecordFunction&) {
  const bool is_cast =
      is_autocast_enabled(c10::kCPU) || is_autocast_enabled(c10::kCUDA) || is_float8_on();
  return is_cast ? std::make_unique<ShieldedNode>() : nullptr;
}

}  // namespace

ShieldBackward::ShieldBackward() {
  if (state().entries.empty()) return;
  auto info = std::make_shared<BackwardInfo>();
  info->entries = state().entries;
  info_.emplace(backward_info_kind<c10::DebugInfoKind>(), std::move(info));
}

}  // namespace torchamp
