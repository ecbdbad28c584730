// The command line of an experiment.
#pragma once

#include <torch/cuda.h>
#include <torch/types.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

/// The device of that name, with its index. "auto" selects the GPU if there is one, else the CPU.
inline torch::Device choose_device(const std::string& name) {
  const bool has_gpu = torch::cuda::is_available();
  TORCH_CHECK(name == "auto" || name == "cpu" || (name == "cuda" && has_gpu),
              "expected --device to be ", has_gpu ? "auto, cpu or cuda" : "auto or cpu", ", got ",
              name);
  const bool on_gpu = name == "auto" ? has_gpu : name == "cuda";
  return torch::empty({0}, on_gpu ? torch::kCUDA : torch::kCPU).device();
}

using Words = std::vector<std::string>;

/// The words of a text.
inline Words split(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// Options `--name value` or `--name value value …`, each with a default.
class Arguments {
 public:
  using Values = std::map<std::string, std::string>;

  /// Throws for an option that is not among the defaults, and for an option without a value.
  Arguments(int argc, char** argv, Values defaults) : values_(std::move(defaults)) {
    for (int i = 1; i < argc;) {
      const auto option = values_.find(argv[i]);
      const std::string value = value_after(argc, argv, i);
      TORCH_CHECK(option != values_.end() && !value.empty(), argv[0], ": expected one of", names(),
                  " and a value, got ", argv[i]);
      option->second = value;
      for (++i; i < argc && !is_option(argv[i]);) ++i;
    }
  }

  const std::string& text(const std::string& name) const { return values_.at(name); }
  Words words(const std::string& name) const { return split(text(name)); }
  /// Throws unless each word is one of `known`, which are separated by spaces.
  Words choices(const std::string& name, const std::string& known) const {
    const Words all = split(known);
    for (const std::string& word : words(name)) {
      TORCH_CHECK(std::find(all.begin(), all.end(), word) != all.end(), "expected ", name,
                  " to be of ", known, ", got ", word);
    }
    return words(name);
  }
  int64_t integer(const std::string& name) const { return parse<int64_t>(name, "an integer"); }
  double number(const std::string& name) const { return parse<double>(name, "a number"); }
  torch::Device device() const { return choose_device(text("--device")); }

 private:
  static bool is_option(const std::string& word) { return word.rfind("--", 0) == 0; }

  /// The words between argv[i] and the next option.
  static std::string value_after(int argc, char** argv, int i) {
    std::string value;
    for (++i; i < argc && !is_option(argv[i]); ++i)
      value += (value.empty() ? "" : " ") + std::string(argv[i]);
    return value;
  }

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

/// Runs an experiment from main, and returns the status that `body` returns. Prints an exception to
/// stderr and returns 1.
template <class Body>
int run_experiment(const Body& body) try {
  return body();
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
