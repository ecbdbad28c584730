// The command line of an example.
#pragma once

#include <torch/cuda.h>
#include <torch/types.h>

#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <utility>

/// The device of that name, with its index. "auto" selects the GPU if there is one, else the CPU.
inline torch::Device choose_device(const std::string& name) {
  const bool has_gpu = torch::cuda::is_available();
  TORCH_CHECK(name == "auto" || name == "cpu" || (name == "cuda" && has_gpu),
              "expected --device to be ", has_gpu ? "auto, cpu or cuda" : "auto or cpu", ", got ",
              name);
  const bool on_gpu = name == "auto" ? has_gpu : name == "cuda";
  return torch::empty({0}, on_gpu ? torch::kCUDA : torch::kCPU).device();
}

/// Options `--name value`, each with a default.
class Arguments {
 public:
  using Values = std::map<std::string, std::string>;

  /// Throws for an option that is not among the defaults, and for an option without a value.
  Arguments(int argc, char** argv, Values defaults) : values_(std::move(defaults)) {
    for (int i = 1; i < argc; i += 2) {
      const auto option = values_.find(argv[i]);
      TORCH_CHECK(option != values_.end() && i + 1 < argc, argv[0], ": expected one of", names(),
                  " and a value, got ", argv[i]);
      option->second = argv[i + 1];
    }
  }

  const std::string& text(const std::string& name) const { return values_.at(name); }
  int64_t integer(const std::string& name) const { return parse<int64_t>(name, "an integer"); }
  double number(const std::string& name) const { return parse<double>(name, "a number"); }
  torch::Device device() const { return choose_device(text("--device")); }

 private:
  template <class T>
  T parse(const std::string& name, const char* kind) const {
    std::istringstream stream(text(name));
    T value{};
    stream >> value;
    TORCH_CHECK(stream && stream.eof(), "expected ", name, " to be ", kind, ", got ", text(name));
    return value;
  }

  std::string names() const {
    std::string list;
    for (const auto& [name, value] : values_) list += " " + name;
    return list;
  }

  Values values_;
};

/// Runs an example from main: prints an exception to stderr and returns status 1.
template <class Body>
int run_example(Body&& body) try {
  body();
  return 0;
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
