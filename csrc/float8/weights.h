// The weights of one initialize whose products are in float8: which tensors they are, and their
// copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <torch/custom_class.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

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

/// Logs once for all that are open that a graph of torch.compile computes products in bfloat16.
void tell_of_graph();

/// Thread-safe: no lock is held while an op runs.
class TORCHAMP_API Weights : public torch::CustomClassHolder {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  /// follows_casts: products are in float8 where O4 casts. tells: whether tell_of_graph() does.
  Weights(const Named& linears, bool follows_casts, bool tells);

  bool follows_casts() const { return follows_casts_; }
  const at::Tensor& param(size_t index) const { return weights_[index].param; }

  /// Makes find() know them, also where their memory was replaced since.
  void follow();
  /// Makes find() forget them.
  void close();

  /// In e4m3, cast if it was written since, together with all others that were in use and were
  /// written. `columns`: whether those are needed.
  Matrix copy_of(size_t index, bool columns);
  /// `input` [..., K], whose rows a weight multiplies, in e4m3; cast unless it was the last.
  Matrix copy_of_input(size_t index, const at::Tensor& input, bool columns);
  /// Keeps the scale of a grad of the output, for nonfinite().
  void note_grad(size_t index, const at::Tensor& scale);
  /// Drops all copies.
  void forget();

  /// Which tensor of the last products was the first that was not finite: "the input of ff.0";
  /// empty if all were. Waits for the device.
  std::string nonfinite();

 private:
  friend void tell_of_graph();

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
    bool is_used = false;
    std::optional<Copy> copy;
    at::Tensor input_scale, grad_scale;
  };

  const bool follows_casts_;
  bool tells_, is_closed_ = false;  ///< find()'s lock guards them
  std::mutex mutex_;
  std::vector<Weight> weights_;
  std::optional<Copy> input_;
};

}  // namespace torchamp::float8
