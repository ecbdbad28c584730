#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torchamp/detail/tools.h>
#include <torchamp/report.h>

#include <algorithm>
#include <atomic>
#include <iomanip>
#include <mutex>
#include <ostream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "inspect/op_watch.h"

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

/// The bytes of its grad, now or after the first plain backward.
int64_t bytes_of_grad(const at::Tensor& param) {
  if (!param.requires_grad()) return 0;
  const at::Tensor& grad = param.grad();
  return param.numel() * static_cast<int64_t>((grad.defined() ? grad : param).element_size());
}

/// Sums the bytes that the optimizer keeps for each of the model's parameters, and what its float32
/// grads will take more than 16-bit ones. Adds what the same state takes in float32.
ByTensor bytes_of_optimizer(const Optimizer& optimizer, int64_t& float32_state) {
  ByTensor found;
  const LossScale scale = optimizer.amp()->properties().loss_scale;
  const torch::optim::Optimizer& wrapped = optimizer.wrapped();
  for (const auto& param : detail::stepped_params(optimizer)) {
    Bytes& bytes = found[param.model.unsafeGetTensorImpl()];
    if (!param.stepped.is_same(param.model)) {
      bytes.masters = bytes_of(param.stepped);
      const bool is_to_come = param.model.requires_grad() && !param.model.grad().defined();
      if (is_to_come && scale.fixed != 1.0 && !param.keeps_scaled) {
        bytes.grads = bytes_of(param.stepped) - bytes_of(param.model);
      }
    }
    for (const at::Tensor& tensor : detail::state_tensors("report", wrapped, param.model)) {
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

/// Counts what a forward does in each scope.
class ScopeCounter : public inspect::CountedOps {
 public:
  std::vector<ScopeRow> take() { return std::move(rows_); }

 protected:
  void see(const inspect::WatchedOp& op, std::optional<at::ScalarType> input) override {
    const auto dtype = floating_result(op);
    if (!dtype) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    ScopeRow& row = row_of(op.scope);
    if (op.name != "_to_copy") {
      ++row.ops[*dtype];
    } else if (input && at::isFloatingType(*input)) {
      const auto before = c10::elementSize(*input), after = c10::elementSize(*dtype);
      row.casts_down += after < before;
      row.casts_up += after > before;
    }
  }

 private:
  static std::optional<at::ScalarType> floating_result(const inspect::WatchedOp& op) {
    for (const auto& output : op.record.outputs()) {
      for (const at::Tensor& tensor : inspect::tensors_of(output)) {
        if (tensor.defined() && tensor.is_floating_point()) return tensor.scalar_type();
      }
    }
    return std::nullopt;
  }

  ScopeRow& row_of(const std::string& scope) {
    for (ScopeRow& row : rows_) {
      if (row.scope == scope) return row;
    }
    rows_.push_back({scope, {}, 0, 0});
    return rows_.back();
  }

  std::mutex mutex_;
  std::vector<ScopeRow> rows_;
};

/// Counts the bytes that a thread allocates on a device.
class Allocations : public c10::MemoryReportingInfoBase {
 public:
  explicit Allocations(c10::DeviceType type) : type_(type) {}
  int64_t bytes() const { return bytes_; }

  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device device) override {
    if (device.type() == type_) bytes_ += size;
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  c10::DeviceType type_;
  std::atomic<int64_t> bytes_{0};
};

void print_scopes(std::ostream& stream, const MemoryReport& report) {
  size_t width = 9;
  for (const auto& row : report.scopes) width = std::max(width, row.scope.size() + 2);
  const auto column = static_cast<int>(width);
  stream << "\n\n"
         << std::left << std::setw(column) << "scope" << std::setw(12) << "casts down"
         << std::setw(12) << "casts up"
         << "ops";
  for (const auto& row : report.scopes) {
    stream << '\n'
           << std::setw(column) << (row.scope.empty() ? "(none)" : row.scope) << std::setw(12)
           << row.casts_down << std::setw(12) << row.casts_up;
    const char* separator = "";
    for (const auto& [dtype, count] : row.ops) {
      stream << std::exchange(separator, ", ") << count << " in " << dtype;
    }
  }
}

void print_bytes(std::ostream& stream, const Bytes& bytes) {
  for (const int64_t size : {bytes.weights, bytes.grads, bytes.masters, bytes.state}) {
    stream << std::setw(14) << std::fixed << std::setprecision(1)
           << static_cast<double>(size) / 1024;
  }
}

MemoryReport report_of_tensors(const torch::nn::Module& module, const Optimizer& optimizer) {
  MemoryReport result;
  result.properties = optimizer.amp()->properties();
  ByTensor kept = bytes_of_optimizer(optimizer, result.float32_total);
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& named : module.named_modules()) {
    ModuleRow row{named.key(), named.value()->name(), {}, {}};
    for (const auto& param : named.value()->parameters(/*recurse=*/false)) {
      if (!param.defined() || !seen.insert(param.unsafeGetTensorImpl()).second) continue;
      add_tensor(row, param);
      row.bytes.grads += bytes_of_grad(param);
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

}  // namespace

Bytes& Bytes::operator+=(const Bytes& other) {
  weights += other.weights;
  grads += other.grads;
  masters += other.masters;
  state += other.state;
  return *this;
}

MemoryReport report(const torch::nn::Module& module, const Optimizer& optimizer,
                    const std::function<at::Tensor()>& forward) {
  MemoryReport result = report_of_tensors(module, optimizer);
  if (forward == nullptr) return result;
  const auto params = module.parameters();
  const auto device = params.empty() ? c10::kCPU : params.front().device().type();
  const auto counter = std::make_shared<ScopeCounter>();
  const auto allocations = std::make_shared<Allocations>(device);
  {
    const inspect::OpWatch watch(counter, "report");
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocations);
    const at::Tensor output = forward();
    result.activations = allocations->bytes();
  }
  result.scopes = counter->take();
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
  if (report.activations) {
    stream << '\n' << static_cast<double>(*report.activations) / 1024 << " KiB of activations";
    print_scopes(stream, report);
  }
  stream.flags(flags);
  stream.precision(precision);
  return stream;
}

}  // namespace torchamp
