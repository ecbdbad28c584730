// Reference implementations of the ops: one loop over one tensor at a time. ATen does the final
// rounding to 16 bits, so that they do not depend on torchamp's conversions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>
#include <vector>

namespace torchamp::oracle {

/// The elements of `tensor` in logical order.
template <class T>
std::vector<T> values(const at::Tensor& tensor) {
  const at::Tensor plain =
      tensor.detach().to(at::kCPU, c10::CppTypeToScalarType<T>::value).contiguous();
  return {plain.const_data_ptr<T>(), plain.const_data_ptr<T>() + plain.numel()};
}

/// f of each element, in float64 if an argument is float64, else in float32; rounded to `like`'s
/// dtype.
template <class F, class... Tensors>
at::Tensor map(const at::Tensor& like, F f, const Tensors&... inputs) {
  const auto in = [&](auto zero) {
    using T = decltype(zero);
    at::Tensor out = like.detach()
                         .to(at::kCPU, c10::CppTypeToScalarType<T>::value)
                         .clone(at::MemoryFormat::Contiguous);
    T* to = out.template mutable_data_ptr<T>();
    [&](const auto&... each) {
      for (int64_t i = 0, count = out.numel(); i < count; ++i) to[i] = f(each[i]...);
    }(values<T>(inputs)...);
    return out.to(like.device(), like.scalar_type());
  };
  const bool wide = ((inputs.scalar_type() == at::kDouble) || ...);
  return wide ? in(0.0) : in(0.0f);
}

inline bool has_nonfinite(const at::Tensor& tensor) {
  for (const double value : values<double>(tensor)) {
    if (!std::isfinite(value)) return true;
  }
  return false;
}

inline at::Tensor scale(const at::Tensor& input, const at::Tensor& output, double factor) {
  return map(
      output, [factor](auto x) { return x * static_cast<decltype(x)>(factor); }, input);
}

inline at::Tensor unscale(const at::Tensor& scaled, const at::Tensor& master, float inv_scale) {
  return scale(scaled, master, inv_scale);
}

inline at::Tensor unscale_onto(const at::Tensor& scaled, const at::Tensor& master,
                               float inv_scale) {
  const auto onto = [inv_scale](auto x, auto before) {
    return std::fma(x, static_cast<decltype(x)>(inv_scale), before);
  };
  return map(master, onto, scaled, master);
}

inline at::Tensor axpby(double a, const at::Tensor& x, double b, const at::Tensor& y,
                        const at::Tensor& output) {
  const auto sum = [a, b](auto x, auto y) {
    using T = decltype(x);
    return std::fma(static_cast<T>(a), x, static_cast<T>(b) * y);
  };
  return map(output, sum, x, y);
}

inline double sum_of_squares(const at::Tensor& tensor) {
  double sum = 0;
  for (const double value : values<double>(tensor)) sum += value * value;
  return sum;
}

/// apex.amp's rule, and recovery from a collapse.
struct LossScale {
  double scale;
  double factor = 2;
  double floor = std::numeric_limits<float>::min();
  double ceiling = 16777216.0;
  int interval = 2000;
  int unskipped = 0;

  void update(bool overflow) {
    if (overflow) {
      unskipped = std::min(unskipped + 1, 0);
      if (scale / factor < floor && floor <= 1) unskipped = -3;
      scale = std::max(scale / factor, floor);
      return;
    }
    if (unskipped >= 0 && ++unskipped < interval) return;
    scale = std::min(scale * factor, ceiling);
    if (unskipped > 0 || scale == ceiling) unskipped = 0;
  }
};

}  // namespace torchamp::oracle
