#include "frontend/checkpoint/module.h"

#include <ATen/ops/empty_like.h>
#include <torch/serialize/archive.h>
#include <torchamp/initialize.h>

#include <string>
#include <utility>
#include <vector>

#include "frontend/session.h"

namespace torchamp {

using at::Tensor;
using torch::nn::Module;

namespace checkpoint {

torch::OrderedDict<std::string, Tensor> tensors_of(const Module& module) {
  auto tensors = module.named_parameters();
  for (const auto& buffer : module.named_buffers()) tensors.insert(buffer.key(), buffer.value());
  return tensors;
}

}  // namespace checkpoint

namespace {

/// A scope in which the tensors of a module have memory of their own, of at least 32 bits, for
/// LibTorch to read a file into.
class ReadIntoCopies {
 public:
  explicit ReadIntoCopies(const Module& module) {
    for (const auto& named : checkpoint::tensors_of(module)) {
      const Tensor& tensor = named.value();
      if (!tensor.defined()) continue;
      const auto dtype =
          c10::isReducedFloatingType(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
      const Tensor memory = tensor.variable_data();
      kept_.push_back({named.key(), tensor, memory, tensor.grad(),
                       at::empty_like(memory, memory.options().dtype(dtype))});
    }
    for (const Kept& each : kept_) {
      each.tensor.mutable_grad().reset();
      core::set_data(each.tensor, each.copy);
    }
  }
  ~ReadIntoCopies() {
    for (const Kept& each : kept_) {
      core::set_data(each.tensor, each.memory);
      if (each.grad.defined()) each.tensor.mutable_grad() = each.grad;
      mark_synced(each.tensor);
    }
  }
  ReadIntoCopies(const ReadIntoCopies&) = delete;
  ReadIntoCopies& operator=(const ReadIntoCopies&) = delete;

  /// The tensors that were read, with their destinations. Throws RuntimeError for other sizes.
  std::vector<std::pair<Tensor, Tensor>> values() const {
    std::vector<std::pair<Tensor, Tensor>> values;
    for (const Kept& each : kept_) {
      TORCH_CHECK(each.tensor.sizes() == each.memory.sizes(), "torch::load: expected \"", each.name,
                  "\" of the file to have the model's sizes, ", each.memory.sizes(), ", got ",
                  each.tensor.sizes());
      values.emplace_back(each.tensor, each.tensor.variable_data());
    }
    return values;
  }

 private:
  struct Kept {
    std::string name;
    Tensor tensor, memory, grad, copy;
  };
  std::vector<Kept> kept_;
};

std::vector<std::pair<Tensor, Tensor>> read(Module& module,
                                            torch::serialize::InputArchive& archive) {
  const ReadIntoCopies copies(module);
  module.load(archive);
  return copies.values();
}

}  // namespace

void detail::save_module(Amp& amp, const Module& module, torch::serialize::OutputArchive& archive) {
  const auto held = amp.session().hold_weights();
  amp.session().refresh();
  module.save(archive);
}

void detail::load_module(Amp& amp, Module& module, torch::serialize::InputArchive& archive) {
  const torch::NoGradGuard no_grad;
  const auto held = amp.session().hold_weights();
  amp.session().refresh();
  for (const auto& [tensor, value] : read(module, archive)) {
    set_value(tensor, value);
  }
}

}  // namespace torchamp
