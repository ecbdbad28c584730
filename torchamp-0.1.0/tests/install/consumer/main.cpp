#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torchamp/build_info.h>
#include <torchamp/ops.h>

#include <iostream>

/// Unscales one float16 gradient and prints the result.
int main() {
  const at::Tensor scaled_grad = at::full({3}, 8.0, at::kHalf);
  const at::Tensor master_grad = at::zeros({3}, at::kFloat);
  const at::Tensor inv_scale = at::full({1}, 0.25, at::kFloat);
  const at::Tensor found_inf = at::zeros({1}, at::kFloat);
  torchamp::ops::unscale(scaled_grad, master_grad, inv_scale, found_inf);
  std::cout << "torch " << torchamp::build_info().torch_version << "\n"
            << "master_grad " << master_grad[2].item<float>() << "\n"
            << "found_inf " << found_inf.item<float>() << "\n";
}
