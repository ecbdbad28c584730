// The ops on the CPU, compared with torch's ops and with a plain copy of the same size. Compare
// only within one run.
#include <ATen/Parallel.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <benchmark/benchmark.h>
#include <torchamp/ops.h>

#include <cstring>

#include "workloads.h"

namespace {

using namespace torchamp;
using at::Tensor;
using Tensors = std::vector<Tensor>;

bench::Shapes shapes_of(int64_t workload) {
  return workload == 0 ? bench::gpt2_124m() : bench::equal(10000, 64);
}

/// Float16 grads, float32 masters, and the scalars of a loss scaler.
struct Lists {
  explicit Lists(int64_t workload)
      : half(bench::random(shapes_of(workload), at::kHalf)),
        full(bench::random(shapes_of(workload), at::kFloat)) {}

  Tensors half;
  Tensors full;
  Tensor inv_scale = at::full({}, 1.0, at::kFloat);
  Tensor found_inf = at::full({}, 0.0, at::kFloat);
};

void report(benchmark::State& state, const Lists& lists, int64_t bytes_per_element) {
  const auto bytes = bench::elements(lists.full) * bytes_per_element;
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * bytes);
}

/// Copies as many bytes as an op that moves `bytes_per_element`: half are reads, half writes.
void bare_copy(benchmark::State& state) {
  const Lists lists(state.range(0));
  const int64_t bytes = bench::elements(lists.full) * state.range(1) / 2;
  const Tensor from = at::full({bytes}, 1, at::kByte), to = at::full({bytes}, 2, at::kByte);
  for (auto _ : state) {
    at::parallel_for(0, bytes, 1 << 16, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data_ptr<uint8_t>() + begin, from.data_ptr<uint8_t>() + begin, end - begin);
    });
  }
  report(state, lists, state.range(1));
}

void unscale(benchmark::State& state) {
  Lists lists(state.range(0));
  for (auto _ : state) ops::unscale(lists.half, lists.full, lists.inv_scale, lists.found_inf);
  report(state, lists, 6);
}

void unscale_in_place(benchmark::State& state) {
  Lists lists(state.range(0));
  for (auto _ : state) ops::unscale(lists.full, lists.full, lists.inv_scale, lists.found_inf);
  report(state, lists, 8);
}

void torch_unscale_in_place(benchmark::State& state) {
  Lists lists(state.range(0));
  for (auto _ : state) {
    at::_amp_foreach_non_finite_check_and_unscale_(lists.full, lists.found_inf, lists.inv_scale);
  }
  report(state, lists, 8);
}

/// unscale with torch's ops: a cast, then the check in place.
void torch_cast_and_unscale(benchmark::State& state) {
  Lists lists(state.range(0));
  for (auto _ : state) {
    at::_foreach_copy_(lists.full, lists.half);
    at::_amp_foreach_non_finite_check_and_unscale_(lists.full, lists.found_inf, lists.inv_scale);
  }
  report(state, lists, 6);
}

void check(benchmark::State& state) {
  Lists lists(state.range(0));
  for (auto _ : state) ops::check(lists.half, lists.found_inf);
  report(state, lists, 2);
}

void l2norm(benchmark::State& state) {
  Lists lists(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(ops::l2norm(lists.full));
  report(state, lists, 4);
}

void torch_foreach_norm(benchmark::State& state) {
  Lists lists(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(at::_foreach_norm(lists.full, 2));
  report(state, lists, 4);
}

void copy_cast(benchmark::State& state) {
  Lists lists(state.range(0));
  for (auto _ : state) ops::copy_cast(lists.full, lists.half);
  report(state, lists, 6);
}

void torch_foreach_copy(benchmark::State& state) {
  Lists lists(state.range(0));
  for (auto _ : state) at::_foreach_copy_(lists.half, lists.full);
  report(state, lists, 6);
}

void workloads(benchmark::internal::Benchmark* b) {
  b->ArgName("tiny")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK(bare_copy)
    ->ArgNames({"tiny", "bytes"})
    ->ArgsProduct({{0, 1}, {4, 6, 8}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(unscale)->Apply(workloads);
BENCHMARK(torch_cast_and_unscale)->Apply(workloads);
BENCHMARK(unscale_in_place)->Apply(workloads);
BENCHMARK(torch_unscale_in_place)->Apply(workloads);
BENCHMARK(check)->Apply(workloads);
BENCHMARK(l2norm)->Apply(workloads);
BENCHMARK(torch_foreach_norm)->Apply(workloads);
BENCHMARK(copy_cast)->Apply(workloads);
BENCHMARK(torch_foreach_copy)->Apply(workloads);

}  // namespace
