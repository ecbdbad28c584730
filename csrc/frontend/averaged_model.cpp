#include <torchamp/averaged_model.h>
#include <torchamp/cast.h>

#include "checkpoint/float32_saves.h"
#include "core/param.h"

namespace torchamp::detail {
namespace {

using Tensors = std::vector<at::Tensor>;

std::shared_ptr<torch::nn::Module> clone_of(const torch::nn::Module& module) {
  try {
    return module.clone();
  } catch (const c10::Error& error) {
    TORCH_CHECK_TYPE(false, "AveragedModel: expected a module that clone() copies, got a ",
                     module.name(), ", for which it throws: ", error.what_without_backtrace(),
                     "; give AveragedModel a second module of the class: AveragedModel(model, "
                     "copy, decay)");
  }
}

void set_values(const Tensors& tensors, const Tensors& originals) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor(tensors[i]).set_data(checkpoint::float32_of(originals[i]).clone());
  }
}

void check_alike(const char* kind, const Tensors& originals, const Tensors& copies) {
  TORCH_CHECK_VALUE(copies.size() == originals.size(),
                    "AveragedModel: expected a copy with the model's ", originals.size(), " ", kind,
                    "s, got one with ", copies.size());
  for (size_t i = 0; i < originals.size(); ++i) {
    TORCH_CHECK_VALUE(copies[i].sizes() == originals[i].sizes(), "AveragedModel: expected ", kind,
                      " ", i, " of the copy to have the model's sizes, ", originals[i].sizes(),
                      ", got ", copies[i].sizes());
    TORCH_CHECK_VALUE(!copies[i].is_same(originals[i]),
                      "AveragedModel: expected a copy with tensors of its own, got ", kind, " ", i,
                      " of the model itself; construct a second module");
  }
}

}  // namespace

std::shared_ptr<torch::nn::Module> clone_in_float32(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  const auto clone = clone_of(module);
  copy_in_float32(module, *clone);
  return clone;
}

void copy_in_float32(const torch::nn::Module& module, torch::nn::Module& copy) {
  const torch::NoGradGuard no_grad;
  check_alike("parameter", module.parameters(), copy.parameters());
  check_alike("buffer", module.buffers(), copy.buffers());
  set_values(copy.parameters(), module.parameters());
  set_values(copy.buffers(), module.buffers());
  flatten_recurrent(copy);
}

void average(const torch::nn::Module& model, const torch::nn::Module& averaged, double weight) {
  const torch::NoGradGuard no_grad;
  const Tensors values = model.parameters(), averages = averaged.parameters();
  TORCH_CHECK_VALUE(values.size() == averages.size(),
                    "update_parameters: expected a model with the ", averages.size(),
                    " parameters of the AveragedModel, got one with ", values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const at::Tensor value = checkpoint::float32_of(values[i]).to(averages[i].device());
    if (weight == 1.0) {
      averages[i].copy_(value);  // lerp_ would round
    } else {
      averages[i].lerp_(value, weight);
    }
  }
  const Tensors buffers = model.buffers(), copies = averaged.buffers();
  for (size_t i = 0; i < buffers.size(); ++i) copies[i].copy_(checkpoint::float32_of(buffers[i]));
}

void check_decay(double decay) {
  TORCH_CHECK_VALUE(decay >= 0.0 && decay <= 1.0,
                    "AveragedModel: expected decay to be from 0 to 1, got ", decay);
}

}  // namespace torchamp::detail
