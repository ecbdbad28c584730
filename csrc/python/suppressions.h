#pragma once

namespace torchamp::python {

/// Counts the scopes that suppress accesses to an optimizer's masters.
struct Suppressions {
  int open = 0;
};

/// Such a scope.
class Suppressed {
 public:
  explicit Suppressed(Suppressions& suppressions) : suppressions_(suppressions) {
    ++suppressions_.open;
  }
  ~Suppressed() { --suppressions_.open; }
  Suppressed(const Suppressed&) = delete;
  Suppressed& operator=(const Suppressed&) = delete;

 private:
  Suppressions& suppressions_;
};

}  // namespace torchamp::python
