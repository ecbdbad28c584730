#include <ATen/ops/from_blob.h>
#include <torch/nn/module.h>
#include <torchamp/serialize.h>

#include <fstream>
#include <sstream>
#include <unordered_map>

#include "checkpoint/file.h"
#include "checkpoint/float32_saves.h"
#include "checkpoint/replace_file.h"
#include "frontend/checkpoint/module.h"
#include "frontend/checkpoint/optimizer.h"
#include "frontend/session.h"

namespace torchamp {
namespace {

using at::Tensor;
using c10::IValue;
using checkpoint::Tree;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

/// The entry that identifies a checkpoint, with its format's version.
constexpr const char* kMark = "torchamp";
constexpr int64_t kFormat = 1;

std::string numbered(const char* list, size_t i) {
  return std::string(list) + "[" + std::to_string(i) + "]";
}

Tree saved_model(const torch::nn::Module& model) {
  Tree tree = checkpoint::new_tree();
  std::unordered_map<const c10::TensorImpl*, Tensor> values;  // a shared tensor is written once
  for (const auto& tensor : checkpoint::tensors_of(model)) {
    if (!tensor->defined()) continue;
    Tensor& value = values[tensor->unsafeGetTensorImpl()];
    if (!value.defined()) value = checkpoint::float32_of(tensor.value());
    tree.insert(tensor.key(), value);
  }
  return tree;
}

Tree saved_scaler(const LossScaler& scaler) {
  const ScaleState state = scaler.state();
  Tree tree = checkpoint::new_tree();
  tree.insert("loss_scale", state.loss_scale);
  tree.insert("growth_tracker", state.growth_tracker);
  return tree;
}

const char* level_of(const Session& session) {
  return session.enabled() ? name(session.properties().opt_level) : "disabled";
}

constexpr const char* kExtra = "extra";

Tree saved_extra(const Extra& extra) {
  Tree tree = checkpoint::new_tree();
  for (const auto& [name, value] : extra) {
    tree.insert(name, checkpoint::data_of(value, std::string(kExtra) + "." + name));
  }
  return tree;
}

Extra read_extra(const Tree& tree) {
  Extra extra;
  if (!tree.contains(kExtra)) return extra;
  for (const auto& entry : checkpoint::as_tree(tree.at(kExtra), kExtra)) {
    extra[checkpoint::as_text(entry.key(), kExtra)] = entry.value();
  }
  return extra;
}

Tree saved(Session& session, const Extra& extra) {
  torch::NoGradGuard no_grad;
  session.refresh();
  std::vector<IValue> models, optimizers, scalers;
  for (const auto& model : session.models()) models.emplace_back(saved_model(*model));
  for (size_t i = 0; i < session.optimizers().size(); ++i) {
    const std::string name = numbered("optimizers", i);
    optimizers.emplace_back(checkpoint::saved_optimizer(*session.optimizer(i).wrapped, name));
  }
  for (const LossScaler& scaler : session.loss_scalers())
    scalers.emplace_back(saved_scaler(scaler));
  Tree tree = checkpoint::new_tree();
  tree.insert(kMark, kFormat);
  tree.insert("opt_level", level_of(session));
  tree.insert("models", checkpoint::list_of(models));
  tree.insert("optimizers", checkpoint::list_of(optimizers));
  tree.insert("loss_scalers", checkpoint::list_of(scalers));
  tree.insert(kExtra, saved_extra(extra));
  return tree;
}

void check_header(const Session& session, const Tree& tree) {
  const int64_t format = checkpoint::as_int(checkpoint::take(tree, kMark), kMark);
  TORCH_CHECK(format == kFormat, "amp::load: expected a checkpoint of format ", kFormat, ", got ",
              format, ", written by another version of torchamp");
  const auto level = checkpoint::as_text(checkpoint::take(tree, "opt_level"), "opt_level");
  TORCH_CHECK(level == level_of(session), "amp::load: expected a checkpoint of opt_level ",
              level_of(session), ", got one of ", level, "; initialize at ", level, " to load it");
}

/// The trees of a list that must have `expected` entries.
std::vector<Tree> take_trees(const Tree& tree, const char* list, const char* what,
                             size_t expected) {
  const auto values = checkpoint::as_list(checkpoint::take(tree, list), list);
  TORCH_CHECK(values.size() == expected, "amp::load: expected a checkpoint of ", expected, " ",
              what, ", got one of ", values.size());
  std::vector<Tree> trees;
  for (size_t i = 0; i < values.size(); ++i) {
    trees.push_back(checkpoint::as_tree(values[i], numbered(list, i)));
  }
  return trees;
}

/// A loaded value and its destination.
struct Loaded {
  Tensor target;
  Tensor value;
};

/// Describes how the file's model differs: ", missing key \"a\", unexpected key \"b\"".
class Differences {
 public:
  template <class... Parts>
  void add(const Parts&... parts) {
    text_ << ", ";
    (text_ << ... << parts);
  }
  void check(const std::string& model) const {
    const std::string text = text_.str();
    TORCH_CHECK(text.empty(), "amp::load: expected ", model,
                " of the checkpoint to have the names, sizes and types of the model here, got ",
                text.substr(std::min<size_t>(text.size(), 2)));
  }

 private:
  std::ostringstream text_;
};

/// Values of one kind are converted to each other: float16 and float32, int32 and int64.
enum class NumberKind { kBool, kInteger, kFloating, kComplex };

NumberKind number_kind(const Tensor& tensor) {
  if (tensor.is_floating_point()) return NumberKind::kFloating;
  if (tensor.is_complex()) return NumberKind::kComplex;
  return tensor.scalar_type() == at::kBool ? NumberKind::kBool : NumberKind::kInteger;
}

void read_model(const torch::nn::Module& model, const Tree& saved, const std::string& name,
                std::vector<Loaded>& loaded) {
  Differences differences;
  const auto tensors = checkpoint::tensors_of(model);
  for (const auto& tensor : tensors) {
    if (!tensor->defined()) continue;
    if (!saved.contains(tensor.key())) {
      differences.add("missing key \"", tensor.key(), "\"");
      continue;
    }
    const Tensor value = checkpoint::as_tensor(saved.at(tensor.key()), tensor.key());
    if (number_kind(value) != number_kind(tensor.value())) {
      differences.add("\"", tensor.key(), "\" of type ", value.scalar_type(), ", expected ",
                      tensor->scalar_type());
    }
    if (value.sizes() != tensor->sizes()) {
      differences.add("\"", tensor.key(), "\" with sizes ", value.sizes(), ", expected ",
                      tensor->sizes());
    }
    loaded.push_back({tensor.value(), value});
  }
  for (const auto& entry : saved) {
    const std::string key = checkpoint::as_text(entry.key(), name);
    if (!tensors.contains(key)) differences.add("unexpected key \"", key, "\"");
  }
  differences.check(name);
}

ScaleState read_scaler(const Tree& saved, const std::string& name) {
  const ScaleState state{
      checkpoint::as_double(checkpoint::take(saved, "loss_scale"), name + ".loss_scale"),
      checkpoint::as_int(checkpoint::take(saved, "growth_tracker"), name + ".growth_tracker")};
  TORCH_CHECK(state.is_valid(), "amp::load: expected ", name,
              " of the checkpoint to have a loss_scale above 0 that is finite in float32, and "
              "a growth_tracker of 32 bits, got ",
              state.loss_scale, " and ", state.growth_tracker);
  return state;
}

Extra load(Session& session, const Tree& tree) {
  torch::NoGradGuard no_grad;
  const auto held = session.hold_weights();
  session.check_not_released();
  check_header(session, tree);
  const auto models = take_trees(tree, "models", "models", session.models().size());
  const auto saved_optimizers =
      take_trees(tree, "optimizers", "optimizers", session.optimizers().size());
  const auto saved_scalers =
      take_trees(tree, "loss_scalers", "losses", session.loss_scalers().size());
  std::vector<ScaleState> scalers;
  for (const Tree& saved : saved_scalers) {
    scalers.push_back(read_scaler(saved, numbered("loss_scalers", scalers.size())));
  }
  Extra extra = read_extra(tree);
  std::vector<Loaded> loaded;
  for (size_t i = 0; i < models.size(); ++i) {
    read_model(*session.models()[i], models[i], numbered("models", i), loaded);
  }
  std::vector<checkpoint::LoadedOptimizer> optimizers;
  for (const Tree& saved : saved_optimizers) {
    const size_t i = optimizers.size();
    optimizers.emplace_back(*session.optimizer(i).wrapped, saved, numbered("optimizers", i));
  }
  for (const auto& each : loaded) set_value(each.target, each.value);
  for (auto& optimizer : optimizers) optimizer.apply();
  for (WrappedOptimizer& optimizer : session.optimizers()) optimizer.note_count();
  for (size_t i = 0; i < scalers.size(); ++i) session.loss_scalers()[i].load_state(scalers[i]);
  return extra;
}

}  // namespace

void save(Amp& amp, OutputArchive& archive, const Extra& extra) {
  const auto held = amp.session().hold_weights();
  std::ostringstream file;
  checkpoint::write_file(saved(amp.session(), extra), file);
  std::string bytes = file.str();
  const auto size = static_cast<int64_t>(bytes.size());
  archive.write(kMark, at::from_blob(bytes.data(), {size}, at::kByte).clone());
}

Extra load(Amp& amp, InputArchive& archive) {
  Tensor bytes;
  TORCH_CHECK(archive.try_read(kMark, bytes) && bytes.scalar_type() == at::kByte,
              "amp::load: expected the archive to contain \"", kMark,
              "\", but it is missing: the archive is damaged or was not written by amp::save");
  bytes = bytes.cpu().contiguous();
  std::istringstream file(std::string(static_cast<const char*>(bytes.const_data_ptr()),
                                      static_cast<size_t>(bytes.numel())));
  return load(amp.session(), checkpoint::read_file(file, kMark));
}

void save(Amp& amp, const std::string& path, const Extra& extra) {
  const auto held = amp.session().hold_weights();
  const Tree tree = saved(amp.session(), extra);
  checkpoint::replace_file(path, [&](const std::string& temporary) {
    std::ofstream file(temporary, std::ios::binary);
    TORCH_CHECK(file, "amp::save: expected \"", path,
                "\" to be a path that can be written, got one that cannot be opened");
    checkpoint::write_file(tree, file);
    TORCH_CHECK(file.flush(), "amp::save: expected \"", path, "\" to have room for the checkpoint");
  });
}

Extra load(Amp& amp, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "amp::load: expected \"", path,
              "\" to be a file that amp::save wrote, got one that cannot be opened");
  return load(amp.session(), checkpoint::read_file(file, path));
}

}  // namespace torchamp
