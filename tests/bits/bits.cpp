// Runs every kernel of csrc/cpu on seeded inputs of all dtypes, and prints a hash of what it
// writes. Two processors print the same lines. All NaNs hash alike: the sign of a new one is the
// processor's.
#include <cinttypes>
#include <cstdio>
#include <random>
#include <string>

#include "backends/kernels.h"
#include "backends/parallel.h"

namespace torchamp {

void parallel_for(int64 count, const std::function<void(int64, int64)>& body) {
  if (count > 0) body(0, count);
}

}  // namespace torchamp

namespace {

using namespace torchamp;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

/// Around each boundary of the walk.
const std::vector<int64> kSizes = {1, 7, 8, 9, 31, 255, 256, 257, 2047, 2049, 40000};

/// Hyperparameters of two groups that are valid for every algorithm: fractions first, then
/// switches.
const std::vector<HyperRow> kHyper = {{{0.1, 0.9, 0.99, 0.01, 0.3, 0, 0, 1, 1}},
                                      {{0.05, 0.8, 0.9, 0.1, 0.2, 1, 1, 0, 0, 1}}};

class Hash {
 public:
  void add(uint32 word) { value_ = (value_ ^ word) * 1099511628211u; }
  void add(float value) { add(value != value ? 0x7fc00000u : float_to_bits(value)); }
  void add(const std::vector<float>& values) {
    for (const float value : values) add(value);
  }
  void add(const std::vector<uint8>& values) {
    for (const uint8 value : values) add(uint32{value});
  }
  void print(const std::string& name) const {
    std::printf("%s %016" PRIx64 "\n", name.c_str(), uint64_t{value_});
  }

 private:
  uint64 value_ = 14695981039346656037u;
};

using Random = std::mt19937;

/// Of any magnitude that float16 has, and a few beyond; `wild`: of any bits.
float draw(Random& random, bool wild) {
  const uint32 bits = static_cast<uint32>(random());
  if (wild && bits % 64 == 0) return float_from_bits(static_cast<uint32>(random()));
  return float_from_bits((bits & 0x807fffffu) | (100u + (bits >> 23) % 42u) << 23);
}

void set(void* data, DType dtype, int64 i, float value) {
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(data)[i] = value;
      break;
    case DType::kFloat16:
      static_cast<float16*>(data)[i] = from_float<float16>(value);
      break;
    case DType::kBFloat16:
      static_cast<bfloat16*>(data)[i] = from_float<bfloat16>(value);
      break;
  }
}

float get(const void* data, DType dtype, int64 i) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(data)[i];
    case DType::kFloat16:
      return to_float(static_cast<const float16*>(data)[i]);
    case DType::kBFloat16:
      return to_float(static_cast<const bfloat16*>(data)[i]);
  }
  return 0.0f;
}

/// Lists of tensors in memory of their own, half of them at an odd element.
struct Lists {
  /// `dtypes`: of each list; empty: drawn for each tensor. Lists from `states` on are not negative.
  Lists(int lists, const std::vector<int64>& sizes, bool wild,
        const std::vector<DType>& dtypes = {}, int states = 99)
      : per_tensor(sizes.size(), 0) {
    Random random(static_cast<uint32>(7 * lists) + (wild ? 1 : 0));
    plan.lists = lists;
    for (const int64 size : sizes) {
      for (int list = 0; list < lists; ++list) {
        const DType dtype = dtypes.empty() ? kDTypes[random() % 3] : dtypes[list];
        const int64 odd = random() % 2;
        memory.emplace_back((size + odd) * size_of(dtype));
        plan.data.push_back(memory.back().data() + odd * size_of(dtype));
        plan.dtypes.push_back(dtype);
        for (int64 i = 0; i < size; ++i) {
          const float value = draw(random, wild);
          set(plan.data.back(), dtype, i, list >= states ? std::fabs(value) : value);
        }
      }
      plan.offsets.push_back(plan.offsets.back() + size);
      plan.positions.push_back(static_cast<int32>(plan.positions.size()));
    }
  }
  Lists(const Lists&) = delete;

  Flags flags() { return {&found_inf, per_tensor.data()}; }

  void print(const std::string& name, Hash hash = {}) const {
    for (int64 t = 0; t < plan.tensors(); ++t) {
      for (int list = 0; list < plan.lists; ++list) {
        const void* data = plan.address(t, list);
        if (data == nullptr) continue;
        for (int64 i = 0; i < plan.offsets[t + 1] - plan.offsets[t]; ++i) {
          hash.add(get(data, plan.dtype(t, list), i));
        }
      }
    }
    hash.add(found_inf);
    hash.add(per_tensor);
    hash.print(name);
  }

  Plan plan;
  float found_inf = 0.0f;
  std::vector<uint8> per_tensor;
  std::vector<std::vector<char>> memory;
};

/// Every size, with each combination of dtypes that chance gives 6 tensors.
std::vector<int64> many_sizes() {
  std::vector<int64> sizes;
  for (int i = 0; i < 6; ++i) sizes.insert(sizes.end(), kSizes.begin(), kSizes.end());
  return sizes;
}

void run_elementwise(bool wild) {
  const std::string of = wild ? " of any bits" : "";
  const float inv_scale = 1.0f / 1024.0f, loss_scale = 3.0f;
  for (const bool accumulate : {false, true}) {
    for (const InvScale by : {InvScale{&inv_scale, false}, InvScale{&loss_scale, true}}) {
      Lists lists(2, many_sizes(), wild);
      cpu::unscale(lists.plan, by, accumulate, lists.flags());
      lists.print("unscale" + std::to_string(accumulate) + std::to_string(by.is_loss_scale) + of);
    }
  }
  for (const Checked checked : {Checked::kX, Checked::kY, Checked::kBoth}) {
    Lists lists(3, many_sizes(), wild);
    cpu::axpby(lists.plan, 0.3f, -1.7f, checked, lists.flags());
    lists.print("axpby" + std::to_string(static_cast<int>(checked)) + of);
  }
  Lists copied(2, many_sizes(), wild);
  cpu::copy_cast(copied.plan);
  copied.print("copy_cast" + of);
  Lists checked(1, many_sizes(), wild);
  cpu::check(checked.plan, checked.flags());
  checked.print("check" + of);
  Lists summed(1, many_sizes(), wild);
  std::vector<float> norms(1 + summed.per_tensor.size());
  cpu::l2norm(summed.plan, &norms[0], &norms[1], summed.flags(), nullptr);
  Hash of_norms;
  of_norms.add(norms);
  summed.print("l2norm" + of, of_norms);
}

/// Tensors of any size as matrices of up to 33 columns, and their casts.
void run_float8(bool wild) {
  for (const Float8 format : {Float8::kE4m3, Float8::kE5m2}) {
    const Lists lists(1, many_sizes(), wild);
    const auto count = static_cast<int32>(lists.plan.tensors());
    std::vector<float> scales(count);
    cpu::float8_scales(lists.plan, format, count, scales.data());
    Plan plan;
    plan.lists = 3;
    std::vector<Matrix> matrices;
    std::vector<std::vector<uint8>> outputs(2 * count);
    for (int32 t = 0; t < count; ++t) {
      const int64 size = lists.plan.offsets[t + 1] - lists.plan.offsets[t];
      const int64 columns = size < 33 ? size : 33, rows = size / columns;
      outputs[2 * t].resize(rows * columns);
      outputs[2 * t + 1].resize(padded(rows) * columns);
      plan.data.insert(plan.data.end(), {lists.plan.address(t, 0), outputs[2 * t].data(),
                                         outputs[2 * t + 1].data()});
      plan.dtypes.insert(plan.dtypes.end(), {lists.plan.dtype(t, 0), {}, {}});
      plan.offsets.push_back(plan.elements() + tiles(rows) * tiles(columns));
      plan.positions.push_back(t);
      plan.rows.push_back(t);
      matrices.push_back({rows, columns, columns});
    }
    cpu::float8_cast(plan, matrices, scales.data(), format);
    Hash hash;
    hash.add(scales);
    for (const std::vector<uint8>& output : outputs) hash.add(output);
    const std::string name = format == Float8::kE4m3 ? "float8 of e4m3" : "float8 of e5m2";
    hash.print(name + (wild ? ", of any bits" : ""));
  }
}

/// Outputs that are larger than a cache.
void run_streamed() {
  const float inv_scale = 1.0f / 1024.0f;
  Lists floats(2, {(int64{1} << 22) + 5}, false, {DType::kBFloat16, DType::kFloat32});
  cpu::unscale(floats.plan, {&inv_scale, false}, false, floats.flags());
  floats.print("unscale, streamed");
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Lists halves(2, {(int64{1} << 23) + 5}, false, {DType::kFloat32, dtype});
    cpu::copy_cast(halves.plan);
    halves.print(dtype == DType::kFloat16 ? "copy_cast to float16, streamed"
                                          : "copy_cast to bfloat16, streamed");
  }
}

template <class Rule>
void run_step(Algorithm algorithm, const std::string& name) {
  constexpr int kModel = 2 + Rule::kStates;
  for (const bool stochastically : {false, true}) {
    Lists lists(kModel + 1, many_sizes(), false, {}, 2);
    const int64 tensors = lists.plan.tensors();
    std::vector<float> steps, param_norms, update_norms, norm_averages;
    for (int64 t = 0; t < tensors; ++t) {
      lists.plan.tags.push_back(t % 4 == 1);
      lists.plan.rows.push_back(static_cast<int32>(t / 2 % 2));
      if (t % 3 == 0) lists.plan.data[t * (kModel + 1) + kModel] = nullptr;
      steps.push_back(static_cast<float>(t % 3));
      param_norms.push_back(static_cast<float>(t % 5));
      update_norms.push_back(0.7f * static_cast<float>(t % 7));
      norm_averages.push_back(1.0f + static_cast<float>(t % 11));
    }
    const float grad_factor = 1.0f / 3.0f;
    const StepInputs inputs{steps.data(),       &grad_factor,        nullptr,
                            param_norms.data(), update_norms.data(), norm_averages.data(),
                            stochastically};
    cpu::step(algorithm, lists.plan, inputs, kHyper, nullptr);
    Hash of_scalars;
    of_scalars.add(steps);
    of_scalars.add(norm_averages);
    lists.print(name + (stochastically ? ", stochastic rounding" : ""), of_scalars);
  }
}

void run_finish_backward(bool wild) {
  Lists lists(2, many_sizes(), wild);
  for (int64 t = 0; t < lists.plan.tensors(); t += 2) lists.plan.data[2 * t + 1] = nullptr;
  std::vector<uint8> per_tensor(lists.per_tensor.size());
  std::vector<float> scalars = {1024.0f, 1024.0f, 0.0f, 0.0f, 0.0f};
  int32 growth_tracker = 7;
  uint32 ticket = 0;
  Report report{};
  Finalization end;
  end.flags = lists.flags();
  end.positions = static_cast<int32>(per_tensor.size());
  end.loss_scale = &scalars[0];
  end.moved = {&scalars[1], &growth_tracker, {2.0f, 0.5f, 8, 1.0f, 65536.0f}};
  end.found_inf = &scalars[2];
  end.inv_scale = &scalars[3];
  end.norm = &scalars[4];
  end.per_tensor = per_tensor.data();
  end.report = &report;
  end.ticket = &ticket;
  cpu::finish_backward(lists.plan, {&scalars[0], true}, false, end.flags, end);
  Hash hash;
  hash.add(scalars);
  hash.add(per_tensor);
  for (const int32 number : {growth_tracker, report.nonfinite, report.first[0], report.first[2]}) {
    hash.add(static_cast<uint32>(number));
  }
  hash.add(static_cast<uint32>(report.outcome));
  hash.add(static_cast<uint32>(report.outcome >> 32));
  lists.print(wild ? "finish_backward of any bits" : "finish_backward", hash);
}

void run_scalars() {
  Random random(5);
  Hash hash;
  float loss_scale = 65536.0f;
  int32 growth_tracker = 0;
  const ScaleUpdate scale{&loss_scale, &growth_tracker, {2.0f, 0.5f, 3, 0.25f, 16777216.0f}};
  for (int i = 0; i < 1000; ++i) {
    const float found_inf = random() % 3 == 0 ? 1.0f : 0.0f;
    cpu::update_scale(scale, &found_inf);
    hash.add(loss_scale);
    hash.add(static_cast<uint32>(growth_tracker));
  }
  hash.print("update_scale");
  for (int i = 0; i < 100; ++i) {
    std::vector<float> values;
    for (int value = 0; value < 11; ++value) values.push_back(std::fabs(draw(random, false)));
    Clipping clipping{};
    clipping.max_norm = values[0];
    clipping.norm = &values[1];
    clipping.coefficient = &values[2];
    clipping.count = 3;
    for (int part = 0; part < 3; ++part) {
      float* const of_part = &values[3 + 2 * part];
      clipping.parts[part] = {of_part, part == 1 ? nullptr : of_part + 1, &values[8 + part]};
    }
    cpu::clip(clipping);
    hash.add(values);
  }
  hash.print("clip");
}

}  // namespace

int main() {
  for (const bool wild : {false, true}) {
    run_elementwise(wild);
    run_float8(wild);
    run_finish_backward(wild);
  }
  run_streamed();
#define TORCHAMP_RUN_STEP(Name, name) run_step<Name>(Algorithm::k##Name, #name);
  TORCHAMP_ALGORITHMS(TORCHAMP_RUN_STEP)
#undef TORCHAMP_RUN_STEP
  run_scalars();
}
