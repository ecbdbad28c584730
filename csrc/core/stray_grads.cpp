#include <torchamp/detail/stray_grads.h>

#include <utility>

#include "core/autograd_meta.h"

namespace torchamp::core {

using at::Tensor;

StrayGrads::Seen::Seen(const Tensor& grad)
    : grad(grad.getIntrusivePtr()), version(grad.defined() ? version_of(grad) : 0) {}

/// A weak pointer keeps the address from being used again.
bool StrayGrads::Seen::is(const Tensor& now) const {
  if (grad._unsafe_get_target() != now.unsafeGetTensorImpl()) return false;
  return !now.defined() || version == version_of(now);
}

void StrayGrads::watch() {
  before_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) before_.emplace_back(grad(i));
}

void StrayGrads::note(bool is_scaled) {
  const std::vector<Seen> before = std::exchange(before_, {});
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].is(grad(i)) || !grad(i).defined()) continue;
    if (is_scaled || weights_.is_separate(i))
      strays_.insert_or_assign(i, Stray{Seen(grad(i)), false});
  }
}

void StrayGrads::begin_own() {
  for (auto it = strays_.begin(); it != strays_.end();) {
    const bool is_kept = has(it->first) && !weights_.is_separate(it->first);
    it->second.is_added_to = is_kept;
    it = is_kept ? std::next(it) : strays_.erase(it);
  }
}

void StrayGrads::forget_dropped() {
  for (auto it = strays_.begin(); it != strays_.end();) {
    it = grad(it->first).defined() ? std::next(it) : strays_.erase(it);
  }
}

bool StrayGrads::has(size_t i) const {
  const auto found = strays_.find(i);
  if (found == strays_.end() || !grad(i).defined()) return false;
  return found->second.is_added_to || found->second.seen.is(grad(i));
}

}  // namespace torchamp::core
