// Grads that a scale_loss left an optimizer that it was not given.
#pragma once

#include <torchamp/detail/master_weights.h>

#include <cstdint>
#include <map>
#include <vector>

namespace torchamp::core {

/// Which of the parameters' grads are stray: they have contributions of a backward that was not
/// given the optimizer, so nobody has unscaled them. A grad is no longer stray once the program has
/// dropped or written it.
class TORCHAMP_API StrayGrads {
 public:
  /// `weights` must outlive it.
  explicit StrayGrads(const MasterWeights& weights) : weights_(weights) {}

  /// Begins another's backward.
  void watch();
  /// Ends it: grads that have changed since watch() are stray. `is_scaled`: whether its loss is;
  /// else only those of parameters with masters are.
  void note(bool is_scaled);
  /// Begins a backward of the optimizer itself, which unscales delayed grads that stray ones were
  /// added to, and adds to them, or sets them aside if the parameter has a master.
  void begin_own();
  /// Forgets those that have been dropped.
  void forget_dropped();
  /// Zeroing of parameter i.
  void drop(size_t i) { strays_.erase(i); }
  /// Whether there are none.
  bool empty() const { return strays_.empty(); }
  /// Whether the grad of parameter i is stray.
  bool has(size_t i) const;

 private:
  /// A grad, and its version at that time.
  struct Seen {
    explicit Seen(const at::Tensor& grad);
    bool is(const at::Tensor& now) const;

    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> grad;
    uint32_t version;
  };
  struct Stray {
    Seen seen;
    bool is_added_to;
  };

  const at::Tensor& grad(size_t i) const { return weights_.model_params()[i].grad(); }

  const MasterWeights& weights_;
  std::vector<Seen> before_;
  std::map<size_t, Stray> strays_;
};

}  // namespace torchamp::core
