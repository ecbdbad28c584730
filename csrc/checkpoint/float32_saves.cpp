#include "checkpoint/float32_saves.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/serialization/export.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/param.h"

namespace torchamp::checkpoint {
namespace {

using at::Tensor;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

bool is_narrow(const Tensor& tensor) {
  return c10::isReducedFloatingType(tensor.scalar_type());
}

/// The tensors that a level has cast, all of the process. A weak pointer keeps the address from
/// being used again.
class Casts {
 public:
  static Casts& instance() {
    static auto& casts = *new Casts;
    return casts;
  }

  void add(const std::vector<Tensor>& tensors) {
    const std::lock_guard lock(mutex_);
    forget_destroyed();
    for (const Tensor& tensor : tensors) {
      if (!is_narrow(tensor)) continue;
      casts_.insert_or_assign(tensor.unsafeGetTensorImpl(), WeakTensor(tensor.getIntrusivePtr()));
    }
  }

  bool has(const Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    return casts_.count(tensor.unsafeGetTensorImpl()) > 0;
  }

 private:
  void forget_destroyed() {
    for (auto it = casts_.begin(); it != casts_.end();) {
      it = it->second.expired() ? casts_.erase(it) : std::next(it);
    }
  }

  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, WeakTensor> casts_;
};

/// Whether torch::save has made `saved` of a module. A program's own stays as it is.
bool is_archive(const torch::jit::Module& saved) {
  const std::string name = saved.type()->name()->qualifiedName();
  return saved.type()->methods().empty() && name.rfind("__torch__.", 0) == 0 &&
         saved.type()->name()->name() == "Module";
}

/// Replaces cast tensors in what is about to be written.
torch::jit::ExtraFilesMap widen(const torch::jit::Module& saved) {
  if (!is_archive(saved)) return {};
  const at::NoGradGuard no_grad;
  std::unordered_map<const c10::TensorImpl*, Tensor> widened;  // a shared tensor is written once
  for (const torch::jit::Module& module : saved.modules()) {
    const auto object = module._ivalue();
    for (size_t i = 0; i < object->slots().size(); ++i) {
      if (!object->getSlot(i).isTensor()) continue;
      const Tensor tensor = object->getSlot(i).toTensor();
      if (!is_narrow(tensor) || !Casts::instance().has(tensor)) continue;
      Tensor& value = widened[tensor.unsafeGetTensorImpl()];
      if (!value.defined()) value = float32_of(tensor).set_requires_grad(tensor.requires_grad());
      object->setSlot(i, value);
    }
  }
  return {};
}

}  // namespace

Tensor float32_of(const Tensor& tensor) {
  if (const auto param = core::param_of(tensor); param != nullptr && param->has_master()) {
    core::refresh({param});
    return param->value();
  }
  return is_narrow(tensor) ? tensor.detach().to(at::kFloat) : tensor.detach();
}

void save_in_float32(const std::vector<Tensor>& tensors) {
  if (std::none_of(tensors.begin(), tensors.end(), is_narrow)) return;
  static const bool is_hooked = (torch::jit::SetExportModuleExtraFilesHook(widen), true);
  static_cast<void>(is_hooked);
  Casts::instance().add(tensors);
}

}  // namespace torchamp::checkpoint
