// Watches the ops of the process, and in which scope of the program each runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <string>
#include <vector>

namespace torchamp::inspect {

/// An op, before it runs or after it ran.
struct WatchedOp {
  std::string name;   ///< "mul" of "aten::mul"
  std::string scope;  ///< the innermost RECORD_USER_SCOPE, in a backward its op's
  bool is_backward;
  const at::RecordFunction& record;
};

/// Observes the ops. Any thread that runs one calls it; the ops that it runs itself are not
/// watched.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  /// Its result is given to after(), unless the watch ends before the op does. Here the record has
  /// inputs.
  virtual std::unique_ptr<at::ObserverContext> before(const WatchedOp& op) = 0;
  /// Here the record has outputs, unless the op threw.
  virtual void after(const WatchedOp& op, const at::ObserverContext* begun) = 0;
};

/// An observer of the ops that autograd differentiates, without those that these are made of,
/// views, and memory that nothing has written yet.
class CountedOps : public OpObserver {
 public:
  std::unique_ptr<at::ObserverContext> before(const WatchedOp& op) final;
  void after(const WatchedOp& op, const at::ObserverContext* begun) final;

 protected:
  /// `op` has returned, here with outputs.
  virtual void see(const WatchedOp& op) = 0;
};

/// Shows `observer` all ops while it lives.
class OpWatch {
 public:
  /// `who` names the caller in the RuntimeError that it throws if there is another one.
  OpWatch(std::shared_ptr<OpObserver> observer, const char* who);
  ~OpWatch();
  OpWatch(const OpWatch&) = delete;
  OpWatch& operator=(const OpWatch&) = delete;
};

/// In which tensors are examined: unseen by the watch, by autograd and by autocast.
struct Unobserved {
  at::RecordFunctionGuard records{false};
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// Whether a tensor has floating elements to look at.
bool is_examined(const at::Tensor& tensor);

/// Whether what an op returns has not been written yet.
bool allocates(const std::string& op);

/// The tensors that an argument or a result is made of.
std::vector<at::Tensor> tensors_of(const c10::IValue& value);

}  // namespace torchamp::inspect
