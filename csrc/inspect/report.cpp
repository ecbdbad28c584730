#include <torchamp/report.h>

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/kinds.h"
#include "frontend/wrapped.h"

namespace torchamp {
namespace {

using ByTensor = std::unordered_map<const c10::TensorImpl*, Bytes>;

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

bool is_low_precision(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

int64_t bytes_in_float32(const at::Tensor& tensor) {
  return bytes_of(tensor) * (is_low_precision(tensor) ? 2 : 1);
}

/// The tensors of a parameter's state that have its sizes.
std::vector<at::Tensor> state_of(const torch::optim::Optimizer& optimizer,
                                 const at::Tensor& stepped) {
  const auto& states = optimizer.state();
  const auto found = states.find(stepped.unsafeGetTensorImpl());
  if (found == states.end()) return {};
  const checkpoint::Kind* kind = checkpoint::kind_of(optimizer);
  TORCH_CHECK(
      kind != nullptr,
      "report: expected an optimizer of torch::optim or torchamp::optim, got one of another "
      "class, whose state is unknown");
  std::vector<at::Tensor> tensors;
  for (const auto& entry : kind->saved(*found->second)) {
    const auto& value = entry.value();
    if (value.isTensor() && value.toTensor().sizes() == stepped.sizes()) {
      tensors.push_back(value.toTensor());
    }
  }
  return tensors;
}

/// Of what the optimizer keeps for each of the model's parameters; adds what the same state takes
/// in float32.
ByTensor bytes_of_optimizer(const Optimizer& optimizer, int64_t& float32_state) {
  ByTensor found;
  const WrappedOptimizer& wrapped = wrapped_of(optimizer);
  const MasterWeights& weights = wrapped.weights();
  const bool has_grads = !wrapped.state->grads().lazy();
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor& master = weights.master_params()[i];
    Bytes& bytes = found[weights.model_params()[i].unsafeGetTensorImpl()];
    if (weights.is_separate(i)) {
      bytes.masters = master.numel() * (weights.is_split() ? 2 : 4);
      bytes.grads = has_grads ? 4 * master.numel() : 0;
    }
    for (const at::Tensor& tensor : state_of(*wrapped.wrapped, master)) {
      bytes.state += bytes_of(tensor);
      float32_state += bytes_in_float32(tensor);
    }
  }
  return found;
}

void add_tensor(ModuleRow& row, const at::Tensor& tensor) {
  row.bytes.weights += bytes_of(tensor);
  auto& types = row.weight_types;
  if (std::find(types.begin(), types.end(), tensor.scalar_type()) == types.end()) {
    types.push_back(tensor.scalar_type());
  }
}

std::string types_text(const ModuleRow& row) {
  std::string text;
  for (const auto dtype : row.weight_types) {
    text += (text.empty() ? "" : ", ") + std::string(c10::toString(dtype));
  }
  return text;
}

void print_bytes(std::ostream& stream, const Bytes& bytes) {
  for (const int64_t size : {bytes.weights, bytes.grads, bytes.masters, bytes.state}) {
    stream << std::setw(14) << std::fixed << std::setprecision(1)
           << static_cast<double>(size) / 1024;
  }
}

}  // namespace

Bytes& Bytes::operator+=(const Bytes& other) {
  weights += other.weights;
  grads += other.grads;
  masters += other.masters;
  state += other.state;
  return *this;
}

MemoryReport report(const torch::nn::Module& module, const Optimizer& optimizer) {
  MemoryReport result;
  result.properties = optimizer.amp()->properties();
  ByTensor kept = bytes_of_optimizer(optimizer, result.float32_total);
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& named : module.named_modules()) {
    ModuleRow row{named.key(), named.value()->name(), {}, {}};
    for (const auto& param : named.value()->parameters(/*recurse=*/false)) {
      if (!param.defined() || !seen.insert(param.unsafeGetTensorImpl()).second) continue;
      add_tensor(row, param);
      row.bytes.grads += param.requires_grad() ? bytes_of(param) : 0;
      row.bytes += kept[param.unsafeGetTensorImpl()];
      result.float32_total += bytes_in_float32(param) * (param.requires_grad() ? 2 : 1);
    }
    for (const auto& buffer : named.value()->buffers(/*recurse=*/false)) {
      if (!buffer.defined() || !seen.insert(buffer.unsafeGetTensorImpl()).second) continue;
      add_tensor(row, buffer);
      result.float32_total += bytes_in_float32(buffer);
    }
    result.bytes += row.bytes;
    result.rows.push_back(row);
  }
  return result;
}

std::ostream& operator<<(std::ostream& stream, const MemoryReport& report) {
  const auto flags = stream.flags();
  const auto precision = stream.precision();
  size_t width = 7;
  for (const auto& row : report.rows) width = std::max(width, row.name.size() + 2);
  const auto column = static_cast<int>(width);
  stream << report.properties << "\n\n"
         << std::left << std::setw(column) << "module" << std::setw(28) << "type" << std::setw(16)
         << "weights" << std::right;
  for (const char* kind : {"weights KiB", "grads KiB", "masters KiB", "state KiB"}) {
    stream << std::setw(14) << kind;
  }
  for (const auto& row : report.rows) {
    stream << '\n'
           << std::left << std::setw(column) << (row.name.empty() ? "(model)" : row.name)
           << std::setw(28) << row.type << std::setw(16) << types_text(row) << std::right;
    print_bytes(stream, row.bytes);
  }
  stream << "\n\n" << std::left << std::setw(column + 44) << "all" << std::right;
  print_bytes(stream, report.bytes);
  stream << '\n'
         << static_cast<double>(report.bytes.total()) / 1024 << " KiB without activations; "
         << static_cast<double>(report.float32_total) / 1024 << " in float32";
  stream.flags(flags);
  stream.precision(precision);
  return stream;
}

}  // namespace torchamp
