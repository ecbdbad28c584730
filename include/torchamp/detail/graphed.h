// What graphed() is for any kind of device: graphed.h has CUDA's graphs.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace torchamp::detail {

/// Work of a device that is captured once and replayed.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// In the stream that is current.
  virtual void begin_capture() = 0;
  virtual void end_capture() = 0;
  virtual void replay() = 0;
};

/// Makes the graphs of one function, which may share their memory.
struct DeviceGraphs {
  at::DeviceType device_type;
  std::function<std::unique_ptr<DeviceGraph>()> make;
};

/// What graphed() returns, but for the types of arguments and result.
class TORCHAMP_API GraphedFunction {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Function = std::function<std::any(const Tensors&)>;

  GraphedFunction(Function function, DeviceGraphs graphs, int64_t max_graphs);
  std::any operator()(const Tensors& inputs) const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// What graphed() returns.
template <class Function>
class Graphed {
 public:
  Graphed(Function function, DeviceGraphs graphs, int64_t max_graphs)
      : function_(std::make_shared<Function>(std::move(function))),
        graphs_(std::move(graphs)),
        max_graphs_(max_graphs) {}

  /// Calls the function, or replays a call of it.
  template <class... Inputs>
  auto operator()(const Inputs&... inputs) {
    constexpr bool are_tensors = (std::is_convertible_v<const Inputs&, at::Tensor> && ...);
    static_assert(are_tensors,
                  "the function of graphed takes tensors: it captures what else it needs");
    if constexpr (are_tensors) {
      using Result = std::decay_t<decltype((*function_)(at::Tensor(inputs)...))>;
      if (run_ == nullptr) {
        const auto places = std::index_sequence_for<Inputs...>();
        run_ = std::make_shared<GraphedFunction>(call_with<Result>(places), graphs_, max_graphs_);
      }
      std::any result = (*run_)({at::Tensor(inputs)...});
      if constexpr (!std::is_void_v<Result>) return std::any_cast<Result>(std::move(result));
    }
  }

 private:
  template <class Result, size_t... I>
  GraphedFunction::Function call_with(std::index_sequence<I...>) {
    return [function = function_](const GraphedFunction::Tensors& inputs) -> std::any {
      TORCH_CHECK_VALUE(inputs.size() == sizeof...(I), "graphed: expected ", sizeof...(I),
                        " arguments as in the first call, got ", inputs.size());
      if constexpr (std::is_void_v<Result>) {
        (*function)(inputs[I]...);
        return {};
      } else {
        return (*function)(inputs[I]...);
      }
    };
  }

  std::shared_ptr<Function> function_;
  DeviceGraphs graphs_;
  int64_t max_graphs_;
  std::shared_ptr<GraphedFunction> run_;
};

}  // namespace torchamp::detail
