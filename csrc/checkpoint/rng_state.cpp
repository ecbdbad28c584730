#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/cuda.h>
#include <torchamp/serialize.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "checkpoint/tree.h"

namespace torchamp {
namespace {

using at::Tensor;
using c10::IValue;
using checkpoint::Tree;

constexpr const char* kCpu = "torch";
constexpr const char* kCuda = "cuda";

/// The CPU's, then those of the CUDA devices.
std::vector<at::Generator> default_generators() {
  std::vector<at::Generator> generators{at::detail::getDefaultCPUGenerator()};
  const size_t devices = torch::cuda::is_available() ? torch::cuda::device_count() : 0;
  for (size_t i = 0; i < devices; ++i) {
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(i));
    generators.push_back(at::globalContext().defaultGenerator(device));
  }
  return generators;
}

bool is_state(const IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
         value.toTensor().scalar_type() == at::kByte;
}

/// One per generator: the CPU's, then those of the CUDA devices, if there are any.
std::vector<IValue> states_of(const IValue& state) {
  std::vector<IValue> states;
  if (!state.isGenericDict()) return states;
  const Tree tree = state.toGenericDict();
  if (!tree.contains(kCpu)) return states;
  states.push_back(tree.at(kCpu));
  if (!tree.contains(kCuda) || !tree.at(kCuda).isList()) return states;
  for (const IValue& each : tree.at(kCuda).toListRef()) states.push_back(each);
  return states;
}

}  // namespace

IValue get_rng_state() {
  std::vector<IValue> states;
  for (at::Generator& generator : default_generators()) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states.emplace_back(generator.get_state());
  }
  Tree tree = checkpoint::new_tree();
  tree.insert(kCpu, states.front());
  tree.insert(kCuda, checkpoint::list_of({states.begin() + 1, states.end()}));
  return tree;
}

void set_rng_state(const IValue& state) {
  const std::vector<IValue> states = states_of(state);
  TORCH_CHECK_TYPE(!states.empty() && std::all_of(states.begin(), states.end(), is_state),
                   "set_rng_state: expected state to be what get_rng_state returned, got ",
                   state.tagKind());
  std::vector<at::Generator> generators = default_generators();
  TORCH_CHECK_VALUE(states.size() == 1 || states.size() == generators.size(),
                    "set_rng_state: expected the states of ", generators.size() - 1,
                    " CUDA devices, got those of ", states.size() - 1,
                    "; remove \"cuda\" from the state to go on with other random numbers");
  for (size_t i = 0; i < states.size(); ++i) {
    const std::lock_guard<std::mutex> lock(generators[i].mutex());
    generators[i].set_state(states[i].toTensor().cpu());
  }
}

}  // namespace torchamp
