// The CUDA compiler as a library, found at run time: torch ships it, and it needs neither a card
// nor a driver.
#pragma once

#include <string>
#include <vector>

#include "cuda/embedded.h"

namespace torchamp::cuda {

/// NVRTC's functions under shortened names, with its program handle as void*. Each returns 0 or an
/// error code.
struct NvrtcFunctions {
  int (*version)(int* major, int* minor);
  int (*supported_count)(int* count);
  int (*supported)(int* archs);
  int (*create)(void** program, const char* source, const char* name, int headers,
                const char* const* header_texts, const char* const* header_names);
  int (*destroy)(void** program);
  int (*compile)(void* program, int options, const char* const* option);
  int (*log_size)(void* program, std::size_t* size);
  int (*log)(void* program, char* text);
  int (*cubin_size)(void* program, std::size_t* size);
  int (*cubin)(void* program, char* image);
  int (*ptx_size)(void* program, std::size_t* size);
  int (*ptx)(void* program, char* image);
};

/// The program that NVRTC compiles for any target: sources.front(), with the rest as its headers.
struct Program {
  std::vector<EmbeddedFile> sources;
  std::vector<std::string> options;
};

/// The options of every program.
const std::vector<std::string>& nvrtc_options();

class Nvrtc {
 public:
  /// The first library that nvrtc_candidates() names and that can be used. Throws
  /// std::runtime_error, naming what was tried, if there is none.
  static const Nvrtc& instance();

  explicit Nvrtc(const std::string& path);

  const std::string& path() const { return path_; }
  /// As "13.0".
  const std::string& version() const { return version_; }
  /// Compute capabilities as 10 · major + minor, ascending.
  std::vector<int> architectures() const;

  /// Compiles for a `target` like sm_90 (to a cubin) or compute_90 (to PTX). Throws
  /// std::runtime_error with the compiler's log.
  std::string compile(const Program& program, const std::string& target) const;

 private:
  void load_builtins(int major, int minor) const;

  std::string path_;
  std::string version_;
  NvrtcFunctions functions_;
};

/// The best target for a card: its own architecture, or else PTX of the newest that is older. Empty
/// if all are newer.
std::string target_for(int capability, const std::vector<int>& architectures);

/// Where NVRTC may be, most trusted first: TORCHAMP_NVRTC alone if it is set; a copy that is loaded
/// already; the one beside torch; the linker's; the toolkit's.
std::vector<std::string> nvrtc_candidates();

/// Identifies an NVRTC, as far as possible without opening it: by the file that
/// nvrtc_candidates() names first. The same for the life of the process. Throws std::runtime_error
/// if there is none.
const std::string& nvrtc_identity();

}  // namespace torchamp::cuda
