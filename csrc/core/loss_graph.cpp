#include "core/loss_graph.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <deque>
#include <string>
#include <unordered_set>

namespace torchamp::core {
namespace {

using torch::autograd::Node;

/// Sums, means, weights and the like come after a loss's last function.
constexpr size_t kNodes = 32;
/// Casts and views come before it.
constexpr size_t kInputs = 4;

bool starts_with(const Node& node, const char* name) {
  return node.name().rfind(name, 0) == 0;
}

const Node* input_of(const Node& node) {
  return node.num_outputs() == 0 ? nullptr : node.next_edge(0).function.get();
}

bool takes_16_bit_sigmoid(const Node& loss_function) {
  const Node* input = input_of(loss_function);
  for (size_t i = 0; i < kInputs && input != nullptr; ++i, input = input_of(*input)) {
    if (!starts_with(*input, "SigmoidBackward")) continue;
    return c10::isReducedFloatingType(input->input_metadata(0).options().dtype().toScalarType());
  }
  return false;
}

}  // namespace

std::vector<at::Tensor> leaves_of(const at::Tensor& loss) {
  std::vector<at::Tensor> leaves;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> rest{loss.grad_fn().get()};
  while (!rest.empty()) {
    const Node* const node = rest.back();
    rest.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
    if (leaf != nullptr && leaf->variable.defined()) leaves.push_back(leaf->variable);
    for (const auto& edge : node->next_edges()) rest.push_back(edge.function.get());
  }
  return leaves;
}

bool has_cross_entropy_of_16_bit_sigmoid(const at::Tensor& loss) {
  std::deque<const Node*> queue{loss.grad_fn().get()};
  for (size_t i = 0; i < kNodes && !queue.empty(); ++i) {
    const Node* const node = queue.front();
    queue.pop_front();
    if (node == nullptr) continue;
    const bool is_found = starts_with(*node, "BinaryCrossEntropyBackward");
    if (is_found && takes_16_bit_sigmoid(*node)) return true;
    for (const auto& edge : node->next_edges()) queue.push_back(edge.function.get());
  }
  return false;
}

}  // namespace torchamp::core
