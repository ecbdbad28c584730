// process_group for programs that use c10d. Not part of amp.h, as not every LibTorch has c10d.
#pragma once

#include <torchamp/agreement.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

namespace torchamp {

/// @addtogroup scale
/// @{

/// The ranks of `backend`, such as a c10d::ProcessGroupNCCL:
/// `amp::Options("O2").process_group(amp::agreement_of(backend))`. Throws ValueError for null.
inline Agreement agreement_of(c10::intrusive_ptr<c10d::Backend> backend) {
  TORCH_CHECK_VALUE(backend != nullptr, "agreement_of: expected a backend, got a null pointer");
  const int64_t rank = backend->getRank(), size = backend->getSize();
  const auto all_reduce_max = [backend = std::move(backend)](const at::Tensor& tensor) {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    backend->allreduce(tensors, options)->wait();
  };
  return {all_reduce_max, rank, size};
}

/// @}

}  // namespace torchamp
