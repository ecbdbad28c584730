// The network's task: whether a point of the plane is in a ring.
#pragma once

#include <torch/types.h>

#include <utility>

/// float32 [64, 2], and int64 [64] of 0 and 1.
inline std::pair<torch::Tensor, torch::Tensor> next_batch(torch::Device device) {
  const torch::Tensor points = torch::randn({64, 2}).to(device);
  const torch::Tensor radius = points.norm(2, 1);
  return {points, radius.gt(0.7).logical_and(radius.lt(1.5)).to(torch::kLong)};
}

/// The fraction of new points that the network classifies correctly.
template <class Net>
double accuracy(Net&& net, torch::Device device) {
  torch::NoGradGuard no_grad;
  double right = 0;
  for (int i = 0; i < 16; ++i) {
    const auto [points, labels] = next_batch(device);
    right += net(points).argmax(1).eq(labels).to(torch::kDouble).mean().template item<double>();
  }
  return right / 16;
}
