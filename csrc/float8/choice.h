// Which linears of a model initialize puts into float8.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <optional>
#include <string>
#include <vector>

#include "float8/weights.h"

namespace torchamp::float8 {

/// A two-dimensional parameter, by one of its names.
struct Candidate {
  std::string name;
  at::Tensor weight;
  bool is_embedding;  ///< whether the module of that name is one
  bool is_kept;       ///< whether it stays in float32
};

/// A model as initialize was given it, in module order.
struct Candidates {
  std::vector<std::string> modules;
  std::vector<Candidate> matrices;
  int64_t num_params = 0;  ///< the elements of all of its parameters
};

struct Choice {
  Weights::Named linears;
  std::string text;  ///< what initialize logs
};

/// With `names`, the linears in those modules whose dimensions are multiples of 16; else those of
/// 1,024 by 1,024 or more, without the last of a model and what embeddings share. Throws ValueError
/// for a name of no module, and for one without such linears; RuntimeError for a device that does
/// not compute in float8, and where another library has the dispatch key.
TORCHAMP_API Choice choose(const std::vector<Candidates>& models,
                           const std::vector<std::string>& names);

/// Throws RuntimeError unless products of a weight on `device` may be in float8. capability: of a
/// CUDA device, as detail::compute_capability() gives it; 0, unknown, is left to torch.
TORCHAMP_API void check_device(const std::string& name, at::Device device, int capability);

}  // namespace torchamp::float8
