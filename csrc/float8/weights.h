// Float8: the weights of one initialize whose products are in it, their copies, and forwards in
// which other threads compute these products.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <torch/custom_class.h>
#include <torchamp/detail/tools.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autocast/open_autocast.h"
#include "float8/product.h"
#include "ops/autograd_meta.h"

namespace torchamp::float8 {

class Weights;

/// A weight that a tensor is, or is the transpose of.
struct Found {
  c10::intrusive_ptr<Weights> weights;
  size_t index = 0;
  bool is_transpose = false;
};

/// Whether it has memory, and is no wrapper of a transform or subclass of Python's.
bool is_plain(const at::Tensor& tensor);

/// Looks the weight up by the memory of `matrix`, which may be a view or a detached tensor. No
/// weights: it is of none that is open.
Found find(const at::Tensor& matrix);

/// Products of these weights are in float8 from open() until close(), in the thread that called
/// open(). Thread-safe: no lock is held while an op runs.
class TORCHAMP_API Weights : public torch::CustomClassHolder {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  struct Close {
    void operator()(Weights* weights) const;
  };
  /// Closes them as it ends, whoever else has them.
  using Open = std::unique_ptr<Weights, Close>;

  /// follows_casts: products are in float8 where O4 casts.
  static Open open(const Named& linears, bool follows_casts);
  Weights(const Named& linears, bool follows_casts);

  bool follows_casts() const { return follows_casts_; }
  const at::Tensor& param(size_t index) const { return weights_[index].param; }
  /// Those that have been multiplied by, in module order.
  detail::Float8Products products();

  /// Makes find() know them, also where their memory was replaced since.
  void follow();
  /// May be called from any thread, and more than once.
  void close();

  /// In e4m3, cast if it was written since, together with all others that were in use and were
  /// written. `columns`: whether those are needed.
  Matrix copy_of(size_t index, bool columns);
  /// `input` [..., K], whose rows a weight multiplies, in e4m3; cast unless it was the last.
  Matrix copy_of_input(size_t index, const at::Tensor& input, bool columns);
  /// Keeps the scale of a grad of the output, for nonfinite().
  void note_grad(size_t index, const at::Tensor& scale);
  /// Drops all copies: a step may write weights by `.data`, and a replay of a graph changes no
  /// version.
  void forget_copies();

  /// Which tensor of the last products was the first that was not finite: "the input of ff.0";
  /// empty if all were. Waits for the device.
  std::string nonfinite();

 private:
  friend class Float8Forward;

  /// A copy, and what it was made of.
  struct Copy {
    bool is_of(const at::Tensor& tensor, bool columns) const;

    Matrix matrix = {};
    Mark mark = {};
    c10::Stream stream;
  };
  struct Weight {
    std::string name;  ///< of the linear
    at::Tensor param;
    at::ScalarType dtype;  ///< while its contents are not lent
    int64_t rows = 0;      ///< of the last input; 0: there was none
    std::optional<Copy> copy;
    at::Tensor input_scale, grad_scale;
  };

  OpenAutocast opened_{{}, at::kFloat8_e4m3fn};
  const bool follows_casts_;
  bool is_closed_ = false;  ///< find()'s lock guards it
  std::mutex mutex_;
  std::vector<Weight> weights_;
  std::optional<Copy> input_;
};

/// A scope around a forward of the models, in any thread. At O5 the casts of other models do not
/// reach into it. Where it trains nothing, the copies end with it.
class TORCHAMP_API Float8Forward {
 public:
  explicit Float8Forward(Weights& weights);
  ~Float8Forward();
  Float8Forward(const Float8Forward&) = delete;
  Float8Forward& operator=(const Float8Forward&) = delete;

 private:
  c10::intrusive_ptr<Weights> weights_;
  JoinAutocast joined_;
  std::optional<disable_casts> shield_;
};

}  // namespace torchamp::float8
