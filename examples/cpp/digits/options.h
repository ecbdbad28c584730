// The command line.
#pragma once

#include <torch/cuda.h>
#include <torch/types.h>

#include <map>
#include <string>

struct CommandLine {
  std::string level;
  int64_t epochs;
  uint64_t seed;
  std::string data;
  std::string out;  ///< per-step CSV; empty: none
  torch::Device device;
};

/// The device of that name, with its index; of "auto" the GPU that is there, else the CPU.
inline torch::Device choose_device(const std::string& name) {
  const std::string automatic = torch::cuda::is_available() ? "cuda" : "cpu";
  return torch::empty({0}, torch::Device(name == "auto" ? automatic : name)).device();
}

inline CommandLine parse_command_line(int argc, char** argv) {
  std::map<std::string, std::string> values = {{"--level", "O2"},      {"--epochs", "10"},
                                               {"--seed", "1"},        {"--out", ""},
                                               {"--data", DIGITS_CSV}, {"--device", "auto"}};
  for (int i = 1; i < argc; i += 2) {
    const auto option = values.find(argv[i]);
    TORCH_CHECK(option != values.end() && i + 1 < argc,
                "digits: expected --level, --epochs, --seed, --data, --out or --device and a "
                "value, got ",
                argv[i]);
    option->second = argv[i + 1];
  }
  return {values["--level"],
          std::stoll(values["--epochs"]),
          std::stoull(values["--seed"]),
          values["--data"],
          values["--out"],
          choose_device(values["--device"])};
}
