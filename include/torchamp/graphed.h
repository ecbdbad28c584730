// A training iteration as one CUDA graph. For programs that have the CUDA toolkit's headers, and
// link libtorch_cuda.so and libc10_cuda.so.
#pragma once

#include <ATen/cuda/CUDAGraph.h>
#include <torchamp/detail/graphed.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace torchamp {
namespace detail {

/// One of CUDA's.
class CudaGraph : public DeviceGraph {
 public:
  explicit CudaGraph(at::cuda::MempoolId_t pool) : pool_(pool) {}
  void begin_capture() override {
    // Threads that load data may call what a capture in this one must not.
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
  }
  void end_capture() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
  at::cuda::MempoolId_t pool_;
};

}  // namespace detail

/// @addtogroup step
/// @{

/// A training iteration that runs as one CUDA graph, which takes the host's part away:
/// ```
/// auto iteration = amp::graphed([&](const torch::Tensor& data, const torch::Tensor& target) {
///   optimizer.zero_grad();
///   const torch::Tensor loss = loss_of(model(data), target);
///   amp::scale_loss(loss, optimizer).backward();
///   optimizer.step();
///   return loss.detach();
/// });
/// for (const auto& batch : loader) loss = iteration(batch.data, batch.target);
/// ```
/// The first three calls run as they are; then one is captured, and later ones replay it. Arguments
/// are copied into the graph's tensors, and returned tensors are the graph's, which the next call
/// overwrites: `loss.clone()` keeps one. Anything else that `function` reads is a constant of the
/// graph, and its C++ code does not run in replays. Learning rates are read before each call, so
/// schedulers work outside of it. After a change of other options of the optimizers, of their
/// parameters or states, the next call runs as it is, and the one after it is captured. Loss
/// scales, skipped steps, their messages and telemetry are as without a graph. On a CPU,
/// and after initialize with enabled(false), it calls the function.
///
/// `function`: an iteration, from zero_grad() to step(), of tensors. Its optimizers are those of
/// initialize, and fused ones of torchamp's. `max_graphs`: arguments of other sizes, dtypes and
/// devices take another graph; beyond that number calls run as they are.
///
/// Throws ValueError for a max_graphs below 1. From the fourth call on: TypeError for an optimizer
/// that waits for the device, RuntimeError for a step by grads of an earlier call and for options
/// that the function changes, and LibTorch's own error for what cannot be captured. Weights are as
/// before that call, and later ones run as they are.
template <class Function>
auto graphed(Function function, int64_t max_graphs = 8) {
  const auto pool = at::cuda::graph_pool_handle();
  const auto make = [pool] { return std::make_unique<detail::CudaGraph>(pool); };
  return detail::Graphed<Function>(std::move(function), {at::kCUDA, make}, max_graphs);
}

/// @}

}  // namespace torchamp
