#include <ATen/autocast_mode.h>
#include <torchamp/autocast.h>

#include "autocast/open_autocast.h"

namespace torchamp {

/// The autocast state of one device type in a thread.
struct DeviceAutocast {
  c10::DeviceType type;
  bool enabled;
  c10::ScalarType dtype;
};

namespace {

using at::autocast::clear_cache;

DeviceAutocast get(c10::DeviceType type) {
  return {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)};
}

/// Cached weights have the previous dtype, so the cache is cleared.
void set(const DeviceAutocast& device) {
  if (device.dtype != at::autocast::get_autocast_dtype(device.type)) clear_cache();
  at::autocast::set_autocast_enabled(device.type, device.enabled);
  at::autocast::set_autocast_dtype(device.type, device.dtype);
}

void leave_scope() {
  if (at::autocast::decrement_nesting() == 0) clear_cache();
}

void check_device_type(c10::DeviceType type) {
  TORCH_CHECK_VALUE(at::autocast::is_autocast_available(type),
                    "autocast: expected device_type to be one that has autocast, got ", type);
}

void check_dtype(c10::ScalarType dtype) {
  TORCH_CHECK_VALUE(dtype == c10::kHalf || dtype == c10::kBFloat16,
                    "autocast: expected dtype to be Half or BFloat16, got ", dtype);
}

}  // namespace

struct autocast::Before {
  DeviceAutocast device;
  bool cache_enabled;
};

bool is_inside_scope() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting() > 0;
}

autocast::autocast(c10::DeviceType device_type, const AutocastOptions& options) {
  check_device_type(device_type);
  const auto& dtype = options.dtype();
  if (options.enabled() && dtype) check_dtype(*dtype);
  before_ =
      std::make_unique<Before>(Before{get(device_type), at::autocast::is_autocast_cache_enabled()});
  set({device_type, options.enabled(), dtype.value_or(before_->device.dtype)});
  const bool keeps_float8_off = is_float8_open() && before_->cache_enabled;
  at::autocast::set_autocast_cache_enabled(options.cache_enabled() || keeps_float8_off);
  at::autocast::increment_nesting();
}

autocast::~autocast() {
  leave_scope();
  set(before_->device);
  at::autocast::set_autocast_cache_enabled(before_->cache_enabled);
}

AutocastState autocast::capture_state() {
  return AutocastState();
}

struct AutocastState::Captured {
  OpenAutocast::Entries open = OpenAutocast::open_in_this_thread();
  std::vector<DeviceAutocast> devices = {};
  bool cache_enabled = at::autocast::is_autocast_cache_enabled();
  bool inside_scope = is_inside_scope();

  Captured() {
    for (int number = 0; number < at::COMPILE_TIME_MAX_DEVICE_TYPES; ++number) {
      const auto type = static_cast<c10::DeviceType>(number);
      if (at::autocast::is_autocast_available(type)) devices.push_back(get(type));
    }
  }

  void restore() const {
    for (const DeviceAutocast& device : devices) set(device);
    at::autocast::set_autocast_cache_enabled(cache_enabled);
  }
};

AutocastState::AutocastState() : captured_(std::make_shared<Captured>()) {}

AppliedAutocast AutocastState::apply() const {
  return AppliedAutocast(*this);
}

struct AppliedAutocast::Scope {
  explicit Scope(const AutocastState::Captured& applied)
      : joined(applied.open), inside_scope(applied.inside_scope) {
    applied.restore();
    if (inside_scope) at::autocast::increment_nesting();
  }
  ~Scope() {
    if (inside_scope) leave_scope();
    before.restore();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  AutocastState::Captured before;
  JoinAutocast joined;
  bool inside_scope;
};

AppliedAutocast::AppliedAutocast(const AutocastState& state)
    : scope_(std::make_unique<Scope>(*state.captured_)) {}

AppliedAutocast::~AppliedAutocast() = default;

}  // namespace torchamp
