// Torch's ops on the simulated device: the CPU's, on the same memory.
#include <ATen/EmptyTensor.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <optional>
#include <vector>

#include "device.h"

namespace simulated {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::IValue;
using c10::Storage;

/// Gives a tensor the metadata of another.
Tensor shaped(Tensor made, const Tensor& like) {
  at::TensorImpl* const impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

Tensor make_tensor(Storage storage, DispatchKey key, const Tensor& like) {
  return shaped(at::detail::make_tensor<at::TensorImpl>(std::move(storage),
                                                        c10::DispatchKeySet(key), like.dtype()),
                like);
}

at::SparseTensorImpl& sparse(const Tensor& tensor) {
  return *static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

void set_sparse(const Tensor& tensor, const Tensor& indices, const Tensor& values,
                const Tensor& like) {
  at::SparseTensorImpl& impl = sparse(tensor);
  impl.raw_resize_(sparse(like).sparse_dim(), sparse(like).dense_dim(), like.sizes());
  impl.set_indices_and_values_unsafe(indices, values);
  impl.set_coalesced(sparse(like).coalesced());
}

Tensor make_sparse(DispatchKey key, const Tensor& indices, const Tensor& values,
                   const Tensor& like) {
  Tensor made =
      at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), like.dtype());
  set_sparse(made, indices, values, like);
  return made;
}

/// The storages and tensors of one call, as the CPU's kernel sees them.
class Call {
 public:
  /// Replaces CUDA tensors, storages and devices by the CPU's.
  IValue to_cpu(const IValue& value) {
    if (value.isTensor()) return to_cpu(value.toTensor());
    if (value.isStorage()) return to_cpu(value.toStorage());
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) list.push_back(to_cpu(each));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor>& each : value.toOptionalTensorVector()) {
        list.push_back(each ? std::optional<Tensor>(to_cpu(*each)) : std::nullopt);
      }
      return list;
    }
    if (!value.isDevice() || !value.toDevice().is_cuda()) return value;
    find_device(value.toDevice());
    return c10::Device(c10::kCPU);
  }

  /// Replaces the CPU's tensors by CUDA's: those that came, views of them, or new ones.
  IValue to_cuda(const IValue& value) const {
    if (value.isTensor()) return to_cuda(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> list;
    for (const Tensor& each : value.toTensorVector()) list.push_back(to_cuda(each));
    return list;
  }

  /// What the kernel has done to the metadata of its arguments.
  void write_back() {
    for (auto& [cuda, cpu] : storages_) {
      if (cpu.data() == cuda.data() && cpu.nbytes() == cuda.nbytes()) continue;
      cuda.set_data_ptr_noswap(copied(cpu));
      cuda.set_nbytes(cpu.nbytes());
    }
    for (const auto& [cuda, cpu] : tensors_) {
      if (cpu.is_sparse()) {
        set_sparse(cuda, to_cuda(sparse(cpu).indices()), to_cuda(sparse(cpu).values()), cpu);
        continue;
      }
      at::TensorImpl* const impl = cuda.unsafeGetTensorImpl();
      const Storage* const storage = cuda_storage_of(cpu);
      if (storage != nullptr && !storage->is_alias_of(cuda.storage())) {
        impl->set_storage_keep_dtype(*storage);
      }
      if (cuda.sizes() == cpu.sizes() && cuda.strides() == cpu.strides() &&
          cuda.storage_offset() == cpu.storage_offset()) {
        continue;
      }
      impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
  }

  /// Of its first tensor, else the one that it names, else the current one.
  c10::Device device() const { return device_.value_or(c10::Device(c10::kCUDA, current_device())); }

 private:
  void find_device(c10::Device device) {
    if (!device_) device_ = device.has_index() ? device : c10::Device(c10::kCUDA, current_device());
  }

  Tensor to_cpu(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    find_device(tensor.device());
    for (const auto& [cuda, cpu] : tensors_) {
      if (cuda.is_same(tensor)) return cpu;
    }
    Tensor made = tensor.is_sparse()
                      ? make_sparse(DispatchKey::SparseCPU, to_cpu(sparse(tensor).indices()),
                                    to_cpu(sparse(tensor).values()), tensor)
                      : make_tensor(to_cpu(tensor.storage()), DispatchKey::CPU, tensor);
    tensors_.emplace_back(tensor, made);
    return made;
  }

  Storage to_cpu(const Storage& storage) {
    if (storage.device_type() != c10::kCUDA) return storage;
    for (const auto& [cuda, cpu] : storages_) {
      if (cuda.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return cpu;
    }
    c10::DataPtr same_memory(storage.mutable_data(), c10::kCPU);
    storages_.emplace_back(
        storage, Storage(Storage::use_byte_size_t(), storage.nbytes(), std::move(same_memory),
                         c10::GetCPUAllocator(), /*resizable=*/true));
    return storages_.back().second;
  }

  /// Null for what the kernel has allocated.
  const Storage* cuda_storage_of(const Tensor& cpu) const {
    for (const auto& [cuda, known] : storages_) {
      if (known.unsafeGetStorageImpl() == cpu.storage().unsafeGetStorageImpl()) return &cuda;
    }
    return nullptr;
  }

  /// A view of what came, as far as autograd knows.
  Tensor view_of(const Storage& storage, const Tensor& cpu) const {
    c10::DispatchKeySet keys(DispatchKey::CUDA);
    for (const auto& [base, known] : tensors_) {
      if (!base.is_sparse() && base.storage().is_alias_of(storage)) keys = base.key_set();
    }
    return shaped(at::detail::make_tensor<at::TensorImpl>(at::TensorImpl::VIEW, Storage(storage),
                                                          keys, cpu.dtype()),
                  cpu);
  }

  Tensor to_cuda(const Tensor& tensor) const {
    if (!tensor.defined() || !tensor.is_cpu()) return tensor;
    for (const auto& [cuda, cpu] : tensors_) {
      if (cpu.is_same(tensor)) return cuda;
    }
    if (tensor.is_sparse()) {
      return make_sparse(DispatchKey::SparseCUDA, to_cuda(sparse(tensor).indices()),
                         to_cuda(sparse(tensor).values()), tensor);
    }
    const Storage* const viewed = cuda_storage_of(tensor);
    if (viewed != nullptr) return view_of(*viewed, tensor);
    return make_tensor(Storage(Storage::use_byte_size_t(), tensor.storage().nbytes(),
                               copied(tensor.storage()), &device_allocator(), /*resizable=*/true),
                       DispatchKey::CUDA, tensor);
  }

  c10::DataPtr copied(const Storage& cpu) const {
    const c10::DeviceGuard guard(device());
    c10::DataPtr data = device_allocator().allocate(cpu.nbytes());
    if (cpu.nbytes() > 0) std::memcpy(data.get(), cpu.data(), cpu.nbytes());
    return data;
  }

  std::optional<c10::Device> device_;
  std::vector<std::pair<Storage, Storage>> storages_;
  std::vector<std::pair<Tensor, Tensor>> tensors_;
};

/// Whether the op only gives another view of its argument, without work for the device.
bool is_view(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return !returns.empty() && returns[0].alias_info() != nullptr &&
         !returns[0].alias_info()->isWrite();
}

/// Whether the host waits for what the op gives it.
bool is_read_by_the_host(const c10::OperatorHandle& op, c10::ArrayRef<IValue> arguments) {
  const std::string& name = op.schema().name();
  if (name == "aten::_local_scalar_dense" || name == "aten::nonzero") return true;
  return name == "aten::copy_" && arguments[0].toTensor().is_cpu() && !arguments[2].toBool();
}

template <DispatchKey key>
void run_with(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call;
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  const bool is_waited_for = is_read_by_the_host(op, arguments);
  std::vector<IValue> of_cpu;
  for (const IValue& each : arguments) of_cpu.push_back(call.to_cpu(each));
  torch::jit::drop(*stack, of_cpu.size());
  stack->insert(stack->end(), of_cpu.begin(), of_cpu.end());
  if (!is_view(op)) {
    count_op();
    if (is_waited_for) count_wait();
    synchronize(current_stream(call.device().index()));
  }
  {
    const at::AutoDispatchBelowAutograd no_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    op.redispatchBoxed(c10::DispatchKeySet(key), stack);
  }
  call.write_back();
  const size_t first = stack->size() - op.schema().returns().size();
  for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = call.to_cuda((*stack)[i]);
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &device_allocator(),
                                   c10::DispatchKeySet(DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &device_allocator(),
                                           c10::DispatchKeySet(DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

void record_stream(Tensor& self, c10::Stream stream) {
  record_use(self.storage().data(), stream);
}

template <DispatchKey key>
torch::CppFunction on() {
  return torch::CppFunction::makeFromBoxedFunction<&run_with<key>>();
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(on<DispatchKey::CPU>());
}

TORCH_LIBRARY_IMPL(_, SparseCUDA, library) {
  library.fallback(on<DispatchKey::SparseCPU>());
}

// Ops of which LibTorch has a kernel for all backends do not come to the fallback.
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("copy_", on<DispatchKey::CPU>());
}

TORCH_LIBRARY_IMPL(aten, SparseCUDA, library) {
  for (const char* const name : {"copy_", "dense_dim", "is_coalesced", "sparse_dim"}) {
    library.impl(name, on<DispatchKey::SparseCPU>());
  }
}

}  // namespace
}  // namespace simulated
