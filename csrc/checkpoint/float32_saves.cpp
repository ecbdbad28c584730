#include "checkpoint/float32_saves.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torchamp/detail/optimizer_state.h>

#include <iterator>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace torchamp::checkpoint {
namespace {

using at::Tensor;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

bool is_narrow(const Tensor& tensor) {
  return c10::isReducedFloatingType(tensor.scalar_type());
}

/// A weak pointer keeps the address from being used again.
struct Cast {
  WeakTensor tensor;
  std::weak_ptr<core::Masters> masters;
};

/// All of the process.
class Casts {
 public:
  static Casts& instance() {
    static Casts casts;
    return casts;
  }

  void add(const std::vector<Tensor>& tensors, const std::shared_ptr<core::Masters>& masters) {
    const std::lock_guard lock(mutex_);
    forget_destroyed();
    for (const Tensor& tensor : tensors) {
      if (!is_narrow(tensor)) continue;
      casts_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                              Cast{WeakTensor(tensor.getIntrusivePtr()), masters});
    }
  }

  std::optional<Cast> find(const Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const auto found = casts_.find(tensor.unsafeGetTensorImpl());
    return found == casts_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void forget_destroyed() {
    for (auto it = casts_.begin(); it != casts_.end();) {
      it = it->second.tensor.expired() ? casts_.erase(it) : std::next(it);
    }
  }

  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Cast> casts_;
};

Tensor value_of(const Tensor& tensor, const Cast& cast) {
  if (const auto masters = cast.masters.lock()) {
    for (core::OptimizerState* user : masters->users) user->refresh();
    return masters->weights.master_value(tensor).to(at::kFloat);
  }
  return tensor.detach().to(at::kFloat);
}

/// Replaces cast tensors in what is about to be written, an object that torch::save has made.
torch::jit::ExtraFilesMap widen(const torch::jit::Module& saved) {
  const at::NoGradGuard no_grad;
  std::unordered_map<const c10::TensorImpl*, Tensor> widened;  // a shared tensor is written once
  for (const torch::jit::Module& module : saved.modules()) {
    const auto object = module._ivalue();
    for (size_t i = 0; i < object->slots().size(); ++i) {
      if (!object->getSlot(i).isTensor()) continue;
      const Tensor tensor = object->getSlot(i).toTensor();
      const auto cast = is_narrow(tensor) ? Casts::instance().find(tensor) : std::nullopt;
      if (!cast) continue;
      Tensor& value = widened[tensor.unsafeGetTensorImpl()];
      if (!value.defined())
        value = value_of(tensor, *cast).set_requires_grad(tensor.requires_grad());
      object->setSlot(i, value);
    }
  }
  return {};
}

}  // namespace

void save_in_float32(const std::vector<Tensor>& tensors,
                     const std::shared_ptr<core::Masters>& masters) {
  static const bool is_hooked = (torch::jit::SetExportModuleExtraFilesHook(widen), true);
  static_cast<void>(is_hooked);
  Casts::instance().add(tensors, masters);
}

}  // namespace torchamp::checkpoint
