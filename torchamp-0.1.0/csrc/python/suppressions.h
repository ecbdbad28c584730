#pragma once

namespace torchamp::python {

/// Of the accesses to an optimizer's masters: how many scopes suppress them.
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
