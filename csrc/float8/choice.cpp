#include "float8/choice.h"

#include <c10/util/StringUtil.h>
#include <torchamp/build_info.h>

#include <algorithm>
#include <cmath>

#include "float8/linear.h"

namespace torchamp::float8 {
namespace {

using Texts = std::vector<std::string>;

/// Below it, casts cost more than products gain.
constexpr int64_t kLeastSize = 1024;

bool fits(const Candidate& candidate) {
  const at::Tensor& weight = candidate.weight;
  return !candidate.is_kept && weight.scalar_type() != at::kDouble && weight.is_contiguous() &&
         weight.size(0) % kMultiple == 0 && weight.size(1) % kMultiple == 0;
}

bool is_in(const Candidate& candidate, const std::string& module) {
  return !candidate.is_embedding && candidate.name.rfind(module + '.', 0) == 0;
}

/// blocks.0.ff of blocks.0.ff.weight.
std::string linear_of(const Candidate& candidate) {
  const size_t end = candidate.name.rfind(".weight");
  return candidate.name.substr(0, end == candidate.name.size() - 7 ? end : std::string::npos);
}

/// The first few of them, or "none".
std::string listed(const Texts& texts) {
  constexpr size_t kFew = 4;
  if (texts.empty()) return "none";
  const Texts few(texts.begin(), texts.begin() + std::min(kFew, texts.size()));
  const size_t more = texts.size() - few.size();
  return c10::str(c10::Join(", ", few), more > 0 ? c10::str(" and ", more, " more") : "");
}

std::string shapes_of(const std::vector<Candidate>& candidates) {
  Texts shapes;
  for (const Candidate& each : candidates) {
    shapes.push_back(c10::str('"', linear_of(each), "\" ", each.weight.sizes()));
  }
  return listed(shapes);
}

std::string millions(int64_t count) {
  std::ostringstream text;
  count < 100'000'000 ? text << std::setprecision(3) << count / 1e6
                      : text << std::llround(count / 1e6);
  return text.str() + " M";
}

/// Why float8=true leaves it out; "" where it does not.
std::string obstacle(const Candidates& model, const Candidate& candidate) {
  const at::Tensor& weight = candidate.weight;
  const Candidate* last = nullptr;
  for (const Candidate& each : model.matrices) {
    if (each.is_embedding && each.weight.is_same(weight)) return "embedding";
    if (!each.is_embedding) last = &each;
  }
  if (last != nullptr && last->weight.is_same(weight)) return "last";
  const bool is_large = std::min(weight.size(0), weight.size(1)) >= kLeastSize;
  return is_large ? "" : c10::str(weight.sizes());
}

/// Throws unless `name` is of a module with a linear that fits.
void check_name(const std::string& name, const std::vector<Candidates>& models) {
  bool is_known = false;
  std::vector<Candidate> found;
  for (const Candidates& model : models) {
    is_known |= std::count(model.modules.begin(), model.modules.end(), name) > 0;
    for (const Candidate& each : model.matrices) {
      if (is_in(each, name)) found.push_back(each);
    }
  }
  TORCH_CHECK_VALUE(is_known, "initialize: expected float8 to name modules in the model, got \"",
                    name, "\"");
  TORCH_CHECK_VALUE(std::any_of(found.begin(), found.end(), fits),
                    "initialize: expected float8 to name modules with linears whose dimensions are "
                    "multiples of 16, got \"",
                    name, "\" with ", shapes_of(found));
}

[[noreturn]] void refuse_small(std::vector<Candidate> all) {
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.weight.numel() > b.weight.numel();
  });
  TORCH_CHECK_VALUE(false,
                    "initialize: expected linears for float8, of 1024 by 1024 or more in multiples "
                    "of 16, neither the last of a model nor shared with an embedding, got ",
                    shapes_of(all),
                    "; name the modules whose linears are to be in float8 at any size");
}

}  // namespace

void check_device(const std::string& name, at::Device device, int capability) {
  const bool is_known = device.is_cuda() && capability > 0;
  const bool is_new = device.is_cuda() && (!is_known || capability >= detail::kFloat8Capability);
  TORCH_CHECK(device.is_cpu() || is_new,
              "initialize: expected the linears of float8 on the CPU or a CUDA device of compute "
              "capability 8.9 or newer, got \"",
              name, "\" on ", device,
              is_known ? c10::str(", of ", capability / 10, '.', capability % 10) : "");
}

Choice choose(const std::vector<Candidates>& models, const Texts& names) {
  for (const std::string& name : names) check_name(name, models);
  Choice choice;
  Texts obstacles;
  std::vector<Candidate> seen;
  int64_t total = 0, chosen = 0;
  for (size_t i = 0; i < models.size(); ++i) {
    const std::string prefix = models.size() > 1 ? c10::str("models[", i, "].") : "";
    total += models[i].num_params;
    for (const Candidate& each : models[i].matrices) {
      const auto is_it = [&](const Candidate& other) { return other.weight.is_same(each.weight); };
      const auto has_it = [&](const std::string& module) { return is_in(each, module); };
      const bool takes_all = names.empty();
      const bool is_named = std::any_of(names.begin(), names.end(), has_it);
      if (!takes_all && each.is_embedding) continue;
      if (std::any_of(seen.begin(), seen.end(), is_it)) continue;
      seen.push_back(each);
      if (!takes_all && !is_named) continue;
      const std::string name = prefix + linear_of(each);
      std::string why = each.is_kept ? "keep_fp32" : "";
      if (why.empty() && takes_all) why = obstacle(models[i], each);
      if (why.empty() && !fits(each)) why = c10::str(each.weight.sizes());
      if (!why.empty()) {
        obstacles.push_back(c10::str(name, " (", why, ")"));
        continue;
      }
      const at::Device device = each.weight.device();
      check_device(each.name, device, device.is_cuda() ? detail::compute_capability(device) : 0);
      choice.linears.emplace_back(name, each.weight);
      chosen += each.weight.numel();
    }
  }
  if (choice.linears.empty()) refuse_small(seen);
  register_kernels();
  choice.text = c10::str("float8: ", choice.linears.size(), " of ", seen.size(), " linears, ",
                         millions(chosen), " of ", millions(total), " parameters",
                         obstacles.empty() ? "" : "; not: " + listed(obstacles));
  return choice;
}

}  // namespace torchamp::float8
