#include <ATen/autocast_mode.h>
#include <torchamp/autocast.h>

namespace torchamp {
namespace {

using at::autocast::clear_cache;
using detail::DeviceAutocast;

bool is_inside_scope() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting() > 0;
}

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

autocast::autocast(c10::DeviceType device_type, std::optional<c10::ScalarType> dtype, bool enabled,
                   bool cache_enabled)
    : cache_before_(at::autocast::is_autocast_cache_enabled()) {
  check_device_type(device_type);
  if (enabled && dtype) check_dtype(*dtype);
  before_ = get(device_type);
  set({device_type, enabled, dtype.value_or(before_.dtype)});
  at::autocast::set_autocast_cache_enabled(cache_enabled);
  at::autocast::increment_nesting();
}

autocast::~autocast() {
  leave_scope();
  set(before_);
  at::autocast::set_autocast_cache_enabled(cache_before_);
}

AutocastState autocast::capture_state() {
  return AutocastState();
}

AutocastState::AutocastState()
    : open_(OpenAutocast::open_in_this_thread()),
      cache_enabled_(at::autocast::is_autocast_cache_enabled()),
      inside_scope_(is_inside_scope()) {
  for (int number = 0; number < at::COMPILE_TIME_MAX_DEVICE_TYPES; ++number) {
    const auto type = static_cast<c10::DeviceType>(number);
    if (at::autocast::is_autocast_available(type)) devices_.push_back(get(type));
  }
}

void AutocastState::restore() const {
  for (const DeviceAutocast& device : devices_) set(device);
  at::autocast::set_autocast_cache_enabled(cache_enabled_);
}

AppliedAutocast AutocastState::apply() const {
  return AppliedAutocast(*this);
}

AppliedAutocast::AppliedAutocast(const AutocastState& state)
    : joined_(state.open_), inside_scope_(state.inside_scope_) {
  state.restore();
  if (inside_scope_) at::autocast::increment_nesting();
}

AppliedAutocast::~AppliedAutocast() {
  if (inside_scope_) leave_scope();
  before_.restore();
}

}  // namespace torchamp
