// The tensors of a module in files.
#pragma once

#include <torch/nn/module.h>

#include <string>

namespace torchamp::checkpoint {

/// Every tensor of a module under its name; buffers after parameters.
torch::OrderedDict<std::string, at::Tensor> tensors_of(const torch::nn::Module& module);

}  // namespace torchamp::checkpoint
