// What the experiments share: command lines, clocks and captions.
#pragma once

#include <torch/cuda.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>
#include <string>

#include "arguments.h"

/// By name: values of the options that a preset gives.
using Presets = std::map<std::string, Arguments::Values>;

/// The options of `own`, of the presets, and those that every experiment has. Options that are not
/// given have the values of the preset. Makes the folder --out, by default out/<name>. Work on a
/// CPU has one thread unless told otherwise: with more, other programs change the times.
inline Arguments parse_command_line(int argc, char** argv, const std::string& name,
                                    Arguments::Values own, const Presets& presets) {
  own.insert({{"--preset", "small"},
              {"--device", "auto"},
              {"--out", "out/" + name},
              {"--seed", "1"},
              {"--threads", "1"}});
  const auto parse = [&](const std::string& preset) {
    Arguments::Values values = own;
    values.insert(presets.at(preset).begin(), presets.at(preset).end());
    return Arguments(argc, argv, values);
  };
  parse("small").choices("--preset", "small original");
  Arguments arguments = parse(parse("small").text("--preset"));
  torch::set_num_threads(static_cast<int>(arguments.integer("--threads")));
  std::filesystem::create_directories(arguments.text("--out"));
  return arguments;
}

/// A clock that first waits for the device to finish its work.
inline double seconds_now(torch::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

/// Follows a unit of time, so that nobody takes a CPU's for a GPU's.
inline std::string on_cpu(torch::Device device) {
  return device.is_cpu() ? " on a CPU" : "";
}

/// The CPU's name, or "CPU" where Linux does not tell.
inline std::string cpu_name() {
  std::ifstream information("/proc/cpuinfo");
  for (std::string line; std::getline(information, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "CPU";
}

/// One line: device, torch, date.
inline std::string caption(torch::Device device) {
  std::ostringstream line;
  if (device.is_cpu()) {
    const int threads = torch::get_num_threads();
    line << "CPU: " << cpu_name() << ", " << threads << (threads > 1 ? " threads" : " thread");
  } else {
    line << "GPU: " << device;
  }
  const std::time_t now = std::time(nullptr);
  line << " · LibTorch " << TORCH_VERSION << " · " << std::put_time(std::localtime(&now), "%F");
  return line.str();
}
