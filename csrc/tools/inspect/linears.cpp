#include "inspect/linears.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torchamp/detail/tools.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "inspect/iteration.h"

namespace torchamp::inspect {
namespace {

/// How many are named.
constexpr size_t kFew = 3;

using Names = std::vector<std::string>;

detail::Float8Products products_of(const Initialize& initialize) {
  const at::AutoGradMode grad_mode(true);
  const auto model = initialize(Options(OptLevel::O5).float8().verbosity(0));
  model.loss();
  auto products = detail::float8_products(*model.amp);
  model.amp->close();
  return products;
}

/// The modules of `linears`, each once, but for those with one of `slow`, which an option with
/// their names would take, too.
Names modules_without(const Names& slow, const Names& linears, const torch::nn::Module& module) {
  const auto modules = module.named_modules("", /*include_self=*/false);
  Names found;
  for (const std::string& name : linears) {
    const std::string owner = modules.contains(name) ? name : name.substr(0, name.rfind('.'));
    const auto is_in_it = [&owner](const std::string& each) {
      return (each + '.').rfind(owner + '.', 0) == 0;
    };
    const bool is_first = found.empty() || found.back() != owner;
    const bool has_slow = std::any_of(slow.begin(), slow.end(), is_in_it);
    if (modules.contains(owner) && is_first && !has_slow) found.push_back(owner);
  }
  return found;
}

}  // namespace

std::optional<double> time_linear(const at::Tensor& weight, int64_t rows, const Options& options) {
  const int64_t inputs = weight.size(1), outputs = weight.size(0);
  const at::Tensor x = at::randn({rows, inputs}, weight.options().dtype(at::kBFloat16));
  x.requires_grad_();
  torch::nn::Sequential linear(
      torch::nn::Linear(torch::nn::LinearOptions(inputs, outputs).bias(false)));
  linear->to(weight.device());
  const auto model = initialize(linear, Options(options).verbosity(0));
  const auto taken =
      time_iteration(*linear, {model.amp(), [&] { return model(x).sum(); }}, /*scale=*/1);
  model.amp()->close();
  return taken;
}

std::string losing_linears(torch::nn::Module& module, const Initialize& initialize,
                           const std::function<decltype(time_linear)>& time) {
  const Unchanged guard(module);
  std::map<std::tuple<int64_t, int64_t, int64_t>, bool> verdicts;
  Names slow, quick;
  for (const auto& [name, weight, rows] : products_of(initialize)) {
    const auto [verdict, is_new] = verdicts.try_emplace({rows, weight.size(1), weight.size(0)});
    if (is_new) {
      const auto plain = time(weight, rows, Options(OptLevel::O5));
      const auto in_float8 = time(weight, rows, Options(OptLevel::O5).float8({"0"}));
      verdict->second = plain && in_float8 && *in_float8 >= *plain;
    }
    (verdict->second ? slow : quick).push_back(name);
  }
  if (slow.empty()) return "";
  if (quick.empty()) return " Each linear by itself is slower in float8.";
  const size_t few = std::min(kFew, slow.size()), more = slow.size() - few;
  std::string text = " Slower in float8, each by itself: " +
                     c10::Join(", ", Names(slow.begin(), slow.begin() + few)) +
                     (more > 0 ? " and " + std::to_string(more) + " more." : ".");
  const Names rest = modules_without(slow, quick, module);
  if (!rest.empty()) text += " float8({\"" + c10::Join("\", \"", rest) + "\"}) takes the others.";
  return text;
}

}  // namespace torchamp::inspect
