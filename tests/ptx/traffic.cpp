// The bytes that the kernels load and store per parameter.
#include "checks.h"
#include "cuda/arguments.h"
#include "cuda/block.h"
#include "driver.h"
#include "libcuda.h"
#include "math/optim/step.h"
#include "queues.h"
#include "tensors.h"

namespace kernel_tests {
namespace {

namespace cuda = torchamp::cuda;

constexpr int64 kTensors = 5, kElements = 100'000;

TensorList tensors_of(DType dtype) {
  TensorList list;
  for (int64 t = 0; t < kTensors; ++t) list.emplace_back(dtype, kElements);
  return list;
}

struct Bytes {
  double loaded;
  double stored;
};

/// Per element of the lists.
template <class Launch>
Bytes traffic_of(Launch launch) {
  std::uint64_t loaded_before, stored_before, loaded, stored;
  ptxTraffic(&loaded_before, &stored_before);
  launch();
  ptxTraffic(&loaded, &stored);
  constexpr double kAll = kTensors * kElements;
  return {static_cast<double>(loaded - loaded_before) / kAll,
          static_cast<double>(stored - stored_before) / kAll};
}

void expect_bytes(Bytes got, double loaded, double stored) {
  EXPECT_NEAR(got.loaded, loaded, 0.01 * loaded + 0.001);
  EXPECT_NEAR(got.stored, stored, 0.01 * stored + 0.001);
}

class Traffic : public testing::Test {
 protected:
  void SetUp() override { cuda::use_driver(driver()); }
};

/// Grad, master and two states in; master, states and the model's parameter out.
void expect_step_of_adam(DType grad, DType model, double loaded) {
  const TensorList grads = tensors_of(grad), params = tensors_of(DType::kFloat32),
                   means = tensors_of(DType::kFloat32), squares = tensors_of(DType::kFloat32),
                   models = tensors_of(model);
  Plan plan = plan_of({&grads, &params, &means, &squares, &models});
  plan.rows.assign(kTensors, 0);
  plan.tags.assign(kTensors, 0);
  std::vector<float> steps(2 * kTensors);
  torchamp::StepInputs inputs{};
  inputs.steps = steps.data();
  torchamp::uint32 ticket = 0;
  expect_bytes(traffic_of([&] {
                 cuda::step(kQueue, torchamp::Algorithm::kAdam, plan, inputs,
                            {{{1e-3, 0.9, 0.999, 1e-8}}}, &ticket);
               }),
               loaded, 14.0);
}

/// As at O5, where autograd's grads are used as they are.
TEST_F(Traffic, OfAStepOfAdamIs28BytesPerParameter) {
  expect_step_of_adam(DType::kFloat16, DType::kFloat16, 14.0);
  expect_step_of_adam(DType::kBFloat16, DType::kBFloat16, 14.0);
}

/// With the 6 of the unscaling, O2's 36.
TEST_F(Traffic, OfAStepOfAdamByFloat32GradsIs30BytesPerParameter) {
  expect_step_of_adam(DType::kFloat32, DType::kFloat16, 16.0);
}

TEST_F(Traffic, OfACheckIs2BytesPerParameter) {
  const TensorList grads = tensors_of(DType::kFloat16);
  Report report(kTensors);
  const Plan plan = plan_of({&grads});
  expect_bytes(traffic_of([&] { cuda::check(kQueue, plan, report.flags()); }), 2.0, 0.0);
}

TEST_F(Traffic, OfFloat8Is6BytesPerElement) {
  constexpr auto kFormat = torchamp::Float8::kE4m3;
  const TensorList matrices = tensors_of(DType::kBFloat16);
  std::vector<float> scales(2 * kTensors);
  std::vector<torchamp::uint32> workspace(2 * kTensors + 1);
  Plan plan = plan_of({&matrices});
  expect_bytes(traffic_of([&] {
                 cuda::float8_scales(kQueue, plan, kFormat, 2 * kTensors, scales.data(),
                                     workspace.data());
               }),
               2.0, 0.0);
  constexpr int64 kRows = 320, kColumns = 312;  // tiles at the edges are not full
  static_assert(kRows * kColumns <= kElements);
  std::vector<torchamp::uint8> plain(kRows * kColumns), transposed(kRows * kColumns);
  plan = {};
  plan.lists = 3;
  plan.data = {matrices[0].data(), plain.data(), transposed.data()};
  plan.dtypes = {DType::kBFloat16, {}, {}};
  plan.offsets = {0, torchamp::tiles(kRows) * torchamp::tiles(kColumns)};
  plan.positions = plan.rows = {0};
  const Bytes all = traffic_of([&] {
    cuda::float8_cast(kQueue, plan, {{kRows, kColumns, kColumns}}, scales.data(), kFormat);
  });
  constexpr double kShare = static_cast<double>(kRows * kColumns) / (kTensors * kElements);
  const double of_scale = 4.0 * 256 / (64 * 64);  // each thread loads it
  expect_bytes({all.loaded / kShare, all.stored / kShare}, 2.0 + of_scale, 2.0);
}

/// And the scale, which each thread loads.
TEST_F(Traffic, OfAnUnscaleToFloat32Is6BytesPerParameter) {
  const TensorList grads = tensors_of(DType::kFloat16), masters = tensors_of(DType::kFloat32);
  Report report(kTensors);
  const float inv_scale = 0.5f;
  const Plan plan = plan_of({&grads, &masters});
  expect_bytes(traffic_of([&] {
                 cuda::unscale(kQueue, plan, {&inv_scale, false}, false, report.flags());
               }),
               2.0 + 4.0 * cuda::kWarp / cuda::kWarpUnit, 4.0);
}

}  // namespace
}  // namespace kernel_tests
