// Shared libraries, opened at run time.
#pragma once

#include <stdexcept>
#include <string>

namespace torchamp::cuda {

/// A library that stays open for the life of the process.
class Library {
 public:
  /// Throws std::runtime_error with the dynamic linker's reason.
  explicit Library(const std::string& path);

  /// Sets `function` to the symbol of that name; throws std::runtime_error where the library has
  /// none.
  template <class Function>
  void find(const char* name, Function*& function) const {
    find_optional(name, function);
    if (function == nullptr) throw std::runtime_error(path_ + " has no function " + name);
  }

  /// Finds a function, or leaves null where there is none.
  template <class Function>
  void find_optional(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  std::string path_;
  void* handle_;
};

/// The path of a library that this process has loaded and whose file name starts with `prefix`;
/// empty if none.
std::string loaded_library(const std::string& prefix);

/// The folder of a path, without the slash.
std::string folder_of(const std::string& path);

}  // namespace torchamp::cuda
