#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torchamp/ops.h>

#include <cmath>
#include <limits>

#include "device.h"
#include "oracle.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::ScalarType;
using at::Tensor;
using Tensors = std::vector<Tensor>;

/// A format's numbers: multiples of a unit, which is smallest below 2^lowest.
struct Format {
  ScalarType dtype;
  int mantissa;
  int lowest;
  double largest;
};
constexpr Format kFormats[] = {{at::kFloat8_e4m3fn, 3, -6, 448}, {at::kFloat8_e5m2, 2, -14, 57344}};

double expected_scale(const Tensor& tensor, const Format& format) {
  double largest = 0;
  for (const double value : oracle::values<double>(tensor)) {
    if (!std::isfinite(value)) return NAN;
    largest = std::max(largest, std::abs(value));
  }
  if (largest == 0) return 1;
  double scale = 0x1p-126;
  while (largest / scale > format.largest) scale *= 2;
  return scale;
}

double nearest(double value, const Format& format) {
  const double magnitude = std::min(std::abs(value), format.largest);
  const int exponent = std::max(std::ilogb(magnitude), format.lowest);
  const double unit = std::ldexp(1.0, exponent - format.mantissa);
  return std::copysign(std::nearbyint(magnitude / unit) * unit, value);
}

/// `matrix`, [M, K], divided by `scale` and rounded.
Tensor expected_cast(const Tensor& matrix, double scale, const Format& format) {
  Tensor rounded = matrix.to(at::kCPU, at::kDouble).contiguous().clone();
  double* const values = rounded.mutable_data_ptr<double>();
  for (int64_t i = 0; i < rounded.numel(); ++i) {
    const double value = values[i] / scale;
    values[i] = value == 0 || std::isnan(value) ? value : nearest(value, format);
  }
  return rounded.to(at::kFloat).to(format.dtype).to(matrix.device());
}

/// The bytes, in which all NaNs are equal.
Tensor bytes_of(const Tensor& tensor) {
  return tensor.view(at::kByte).masked_fill(tensor.to(at::kFloat).isnan(), 0x7f);
}

Tensor padded(const Tensor& transposed, int64_t rows) {
  const int64_t length = (rows + 15) / 16 * 16;
  const Tensor zeros = at::zeros({transposed.size(0), length}, transposed.options());
  zeros.narrow(1, 0, rows).copy_(transposed);
  return zeros;
}

class Float8Test : public DeviceTest {
 protected:
  static void expect_casts(const Tensors& matrices, const Format& format, const Tensor& scales) {
    const auto [plain, transposed] = ops::float8_cast(matrices, scales, format.dtype);
    for (size_t i = 0; i < matrices.size(); ++i) {
      const double scale = scales[static_cast<int64_t>(i)].item<double>();
      const Tensor expected = bytes_of(expected_cast(matrices[i], scale, format));
      EXPECT_EQ(plain[i].scalar_type(), format.dtype);
      EXPECT_TRUE(plain[i].is_contiguous() && transposed[i].is_contiguous());
      EXPECT_TRUE(same_bits(bytes_of(plain[i]), expected)) << matrices[i].sizes();
      EXPECT_TRUE(same_bits(bytes_of(transposed[i]), padded(expected.t(), matrices[i].size(0))))
          << matrices[i].sizes();
    }
  }

  static void expect_scales(const Tensors& tensors, const Format& format) {
    const Tensor scales = ops::float8_scales(tensors, format.dtype);
    std::vector<double> expected;
    for (const Tensor& tensor : tensors) {
      expected.push_back(tensor.defined() ? expected_scale(tensor, format) : 1.0);
    }
    EXPECT_TRUE(same_bits(scales, tensor_of(expected, at::kFloat, device())));
  }

  static Tensor every_bfloat16() {
    return at::arange(65536, at::kInt).to(at::kShort).view(at::kBFloat16).to(device());
  }
};

/// The largest of each pair decides.
TEST_P(Float8Test, ScalesOfEveryBFloat16) {
  const Tensors pairs = every_bfloat16().view({-1, 2}).unbind();
  for (const Format& format : kFormats) expect_scales(pairs, format);
}

TEST_P(Float8Test, ScalesBesidePowersOfTwo) {
  Tensors tensors;
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (int exponent = -149; exponent < 128; ++exponent) {
      for (const double times : {1.0, 1.75}) {
        const auto power = static_cast<float>(std::ldexp(times, exponent));
        for (const float towards : {0.0f, power, std::numeric_limits<float>::infinity()}) {
          const float beside = std::nextafter(power, towards);
          tensors.push_back(tensor_of({0, -beside, beside / 2}, dtype, device()));
        }
      }
    }
  }
  for (const Format& format : kFormats) expect_scales(tensors, format);
}

TEST_P(Float8Test, ScalesOfAnyTensors) {
  Tensors tensors = {Tensor(),
                     at::empty({0, 3}, device()),
                     at::zeros({5}, device()),
                     tensor_of({1, NAN}, at::kHalf, device()),
                     tensor_of({-INFINITY}, at::kBFloat16, device()),
                     tensor_of({-0.0}, at::kFloat, device())};
  for (int layout = 0; layout < kLayouts; ++layout) {
    const Tensor whole = Random(layout).normal({2, 3, 41, 7}, at::kFloat, device());
    tensors.push_back(laid_out(whole, static_cast<Layout>(layout)));
  }
  tensors.push_back(Random(9).normal({300000}, at::kBFloat16, device()));
  tensors.back()[299999] = 1000;
  tensors.push_back(tensor_of({3}, at::kFloat, device()).expand({4, 2}));
  for (const Format& format : kFormats) expect_scales(tensors, format);
  EXPECT_EQ(ops::float8_scales(Tensors{}, at::kFloat8_e5m2).numel(), 0);
}

TEST_P(Float8Test, CastsOfEveryBFloat16) {
  const Tensor all = every_bfloat16().view({256, 256});
  for (const double scale : {1.0, 0x1p-126, 0x1p-7, 0x1p120}) {
    const Tensor scales = tensor_of({scale}, at::kFloat, device());
    for (const Format& format : kFormats) expect_casts({all}, format, scales);
  }
}

/// Float32 numbers at, between and beside two of the format.
TEST_P(Float8Test, CastsRoundToNearestEven) {
  for (const Format& format : kFormats) {
    std::vector<double> values;
    for (int exponent = format.lowest - format.mantissa - 2; exponent < 17; ++exponent) {
      for (int sixteenths = 16; sixteenths < 32; ++sixteenths) {
        const auto at = static_cast<float>(std::ldexp(sixteenths, exponent - 4));
        for (const float value : {at, std::nextafter(at, 0.0f), std::nextafter(at, 1e9f)}) {
          values.insert(values.end(), {value, -value});
        }
      }
    }
    const Tensor row = tensor_of(values, at::kFloat, device()).unsqueeze(0);
    expect_casts({row}, format, tensor_of({1}, at::kFloat, device()));
  }
}

TEST_P(Float8Test, CastsOfAllSizes) {
  Random random(3);
  for (int round = 0; round < 4; ++round) {
    Tensors matrices;
    std::vector<double> scales;
    for (int i = 0; i < 30; ++i) {
      const Tensor normal =
          random.normal({1 + random.below(130), 1 + random.below(130)}, kDtypes[i % 3], device());
      const auto layout = static_cast<Layout>(i % kLayouts);
      matrices.push_back(layout == Layout::kChannelsLast ? normal : laid_out(normal, layout));
      scales.push_back(std::ldexp(1.0, static_cast<int>(random.below(8)) - 9));
    }
    for (const Format& format : kFormats) {
      expect_casts(matrices, format, tensor_of(scales, at::kFloat, device()));
    }
  }
}

TEST_P(Float8Test, CastsOfOddMatrices) {
  const Tensor whole = Random(1).normal({70, 200}, at::kBFloat16, device());
  const Tensors matrices = {
      at::empty({0, 5}, device()),
      at::empty({5, 0}, device()),
      at::zeros({3, 3}, device()),
      whole.narrow(1, 3, 130),
      whole.t(),
      whole[0].expand({20, 200}),
      at::full({}, 2.0, whole.options()).expand({17, 33}),
      whole._neg_view(),
      tensor_of({1, NAN, INFINITY, -INFINITY}, at::kFloat, device()).view({2, 2})};
  for (const Format& format : kFormats) {
    expect_casts(matrices, format, ops::float8_scales(matrices, format.dtype).nan_to_num(1.0));
  }
}

TEST_P(Float8Test, CastsByANaNAreNaN) {
  const Tensors matrix = {at::full({3, 5}, 2.0, at::TensorOptions(device()))};
  const Tensor scales = tensor_of({NAN}, at::kFloat, device());
  for (const Format& format : kFormats) {
    const auto [plain, transposed] = ops::float8_cast(matrix, scales, format.dtype);
    EXPECT_TRUE(plain[0].to(at::kFloat).isnan().all().item<bool>());
    EXPECT_TRUE(transposed[0].to(at::kFloat).narrow(1, 0, 3).isnan().all().item<bool>());
  }
}

TEST_P(Float8Test, LeavesOutWhatIsNotAskedFor) {
  const Tensors matrices = {Random(2).normal({33, 70}, at::kHalf, device())};
  const Tensor scales = ops::float8_scales(matrices, at::kFloat8_e4m3fn);
  const auto cast = [&](bool plain, bool transposed) {
    return ops::float8_cast(matrices, scales, at::kFloat8_e4m3fn, plain, transposed);
  };
  const auto [plain, transposed] = cast(true, true);
  const auto [only_plain, no_transposed] = cast(true, false);
  const auto [no_plain, only_transposed] = cast(false, true);
  EXPECT_TRUE(no_plain.empty() && no_transposed.empty());
  EXPECT_TRUE(same_bits(bytes_of(only_plain[0]), bytes_of(plain[0])));
  EXPECT_TRUE(same_bits(bytes_of(only_transposed[0]), bytes_of(transposed[0])));
}

TORCHAMP_ON_EACH_DEVICE(Float8Test);

}  // namespace
}  // namespace torchamp
