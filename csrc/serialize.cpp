#include <torch/optim/serialize.h>
#include <torch/serialize.h>
#include <torchamp/serialize.h>

#include <memory>
#include <type_traits>

namespace torchamp {
namespace {

using at::Tensor;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr int64_t kFormat = 1;

std::string numbered(const char* stem, size_t i) {
  return stem + std::to_string(i);
}

/// A parameter's or buffer's value as a checkpoint holds it.
Tensor to_saved(Amp& amp, const Tensor& tensor) {
  const Tensor master = amp.master_value(tensor);
  const Tensor source = master.defined() ? master : tensor;
  return source.is_floating_point() ? source.detach().to(at::kFloat) : source.detach();
}

/// Every tensor of a model under its name; buffers after parameters.
torch::OrderedDict<std::string, Tensor> tensors_of(const torch::nn::Module& model) {
  auto tensors = model.named_parameters();
  for (const auto& buffer : model.named_buffers()) tensors.insert(buffer.key(), buffer.value());
  return tensors;
}

OutputArchive saved_model(Amp& amp, const torch::nn::Module& model) {
  OutputArchive archive;
  for (const auto& tensor : tensors_of(model)) {
    if (tensor->defined()) archive.write(tensor.key(), to_saved(amp, tensor.value()));
  }
  return archive;
}

OutputArchive saved_scaler(const LossScaler& scaler) {
  const LossScalerState state = scaler.state();
  OutputArchive archive;
  archive.write("loss_scale", c10::IValue(state.loss_scale));
  archive.write("growth_tracker", c10::IValue(state.growth_tracker));
  archive.write("hysteresis_tracker", c10::IValue(state.hysteresis_tracker));
  return archive;
}

/// Reads one entry, or throws naming what a damaged or foreign file lacks.
template <class T>
T take(InputArchive& archive, const std::string& key) {
  T value;
  TORCH_CHECK(archive.try_read(key, value), "amp::load: expected the checkpoint to hold \"", key,
              "\", got none: the file is damaged or was not written by amp::save");
  return value;
}

void check_equal(const char* what, int64_t expected, int64_t got) {
  TORCH_CHECK(expected == got, "amp::load: expected a checkpoint of ", expected, " ", what,
              ", got one of ", got);
}

void check_header(Amp& amp, InputArchive& archive) {
  check_equal("format version", kFormat, take<c10::IValue>(archive, "format").toInt());
  const std::string level = take<c10::IValue>(archive, "opt_level").toStringRef();
  const char* expected = name(amp.properties().opt_level);
  TORCH_CHECK(level == expected, "amp::load: expected a checkpoint of opt_level ", expected,
              ", got one of ", level, "; initialize at ", level, " to load it");
  check_equal("losses", static_cast<int64_t>(amp.loss_scalers().size()),
              take<c10::IValue>(archive, "num_losses").toInt());
  check_equal("models", static_cast<int64_t>(amp.models().size()),
              take<c10::IValue>(archive, "num_models").toInt());
  check_equal("optimizers", static_cast<int64_t>(amp.optimizers().size()),
              take<c10::IValue>(archive, "num_optimizers").toInt());
}

/// A loaded value and where it goes.
struct Loaded {
  Tensor target;
  Tensor value;
};

void read_model(const torch::nn::Module& model, InputArchive& archive,
                std::vector<Loaded>& loaded) {
  for (const auto& tensor : tensors_of(model)) {
    if (!tensor->defined()) continue;
    const Tensor value = take<Tensor>(archive, tensor.key());
    TORCH_CHECK(value.sizes() == tensor->sizes(), "amp::load: expected \"", tensor.key(),
                "\" to have sizes ", tensor->sizes(), ", got ", value.sizes());
    loaded.push_back({tensor.value(), value});
  }
}

LossScalerState read_scaler(InputArchive& archive) {
  return {take<c10::IValue>(archive, "loss_scale").toDouble(),
          take<c10::IValue>(archive, "growth_tracker").toInt(),
          take<c10::IValue>(archive, "hysteresis_tracker").toInt()};
}

/// What load() changes of a LibTorch optimizer, to be put back if a later part of the file is
/// wrong.
class OptimizerBackup {
 public:
  explicit OptimizerBackup(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
    state_.swap(optimizer.state());
    for (auto& group : optimizer.param_groups()) options_.push_back(group.options().clone());
  }

  void restore() {
    state_.swap(optimizer_.state());
    auto& groups = optimizer_.param_groups();
    for (size_t g = 0; g < groups.size(); ++g) groups[g].set_options(std::move(options_[g]));
  }

 private:
  torch::optim::Optimizer& optimizer_;
  std::remove_reference_t<decltype(optimizer_.state())> state_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
};

void load_optimizers(Amp& amp, std::vector<InputArchive>& archives) {
  std::vector<OptimizerBackup> backups;
  try {
    for (size_t i = 0; i < archives.size(); ++i) {
      backups.emplace_back(*amp.optimizers()[i].wrapped);
      amp.optimizers()[i].wrapped->load(archives[i]);
    }
  } catch (const c10::Error& error) {
    for (auto& backup : backups) backup.restore();
    TORCH_CHECK(false, "amp::load: expected optimizer ", backups.size() - 1,
                " of the checkpoint to have the kind and the groups of the one here, got: ",
                error.what_without_backtrace());
  }
}

void store(Amp& amp, const Loaded& loaded) {
  amp.set_master_value(loaded.target, loaded.value);
  loaded.target.copy_(loaded.value);
}

}  // namespace

void save(Amp& amp, OutputArchive& archive) {
  torch::NoGradGuard no_grad;
  amp.refresh();
  archive.write("format", c10::IValue(kFormat));
  archive.write("opt_level", c10::IValue(name(amp.properties().opt_level)));
  archive.write("num_losses", c10::IValue(static_cast<int64_t>(amp.loss_scalers().size())));
  archive.write("num_models", c10::IValue(static_cast<int64_t>(amp.models().size())));
  archive.write("num_optimizers", c10::IValue(static_cast<int64_t>(amp.optimizers().size())));
  for (size_t i = 0; i < amp.models().size(); ++i) {
    OutputArchive model = saved_model(amp, *amp.models()[i]);
    archive.write(numbered("model", i), model);
  }
  for (size_t i = 0; i < amp.loss_scalers().size(); ++i) {
    OutputArchive scaler = saved_scaler(amp.loss_scalers()[i]);
    archive.write(numbered("loss_scaler", i), scaler);
  }
  for (size_t i = 0; i < amp.optimizers().size(); ++i) {
    OutputArchive optimizer;
    amp.optimizers()[i].wrapped->save(optimizer);
    archive.write(numbered("optimizer", i), optimizer);
  }
}

void load(Amp& amp, InputArchive& archive) {
  torch::NoGradGuard no_grad;
  check_header(amp, archive);
  std::vector<Loaded> loaded;
  for (size_t i = 0; i < amp.models().size(); ++i) {
    InputArchive model = take<InputArchive>(archive, numbered("model", i));
    read_model(*amp.models()[i], model, loaded);
  }
  std::vector<LossScalerState> scalers;
  for (size_t i = 0; i < amp.loss_scalers().size(); ++i) {
    InputArchive scaler = take<InputArchive>(archive, numbered("loss_scaler", i));
    scalers.push_back(read_scaler(scaler));
  }
  std::vector<InputArchive> optimizers;
  for (size_t i = 0; i < amp.optimizers().size(); ++i) {
    optimizers.push_back(take<InputArchive>(archive, numbered("optimizer", i)));
  }
  load_optimizers(amp, optimizers);
  for (const Loaded& each : loaded) store(amp, each);
  for (size_t i = 0; i < scalers.size(); ++i) amp.loss_scalers()[i].load_state(scalers[i]);
  for (auto& optimizer : amp.optimizers()) optimizer.weights.mark_synced();
}

void save(Amp& amp, const std::string& path) {
  OutputArchive archive;
  save(amp, archive);
  archive.save_to(path);
}

void load(Amp& amp, const std::string& path) {
  InputArchive archive;
  try {
    archive.load_from(path);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "amp::load: expected \"", path,
                "\" to be a file that amp::save wrote, got one that cannot be read: ",
                error.what_without_backtrace());
  }
  load(amp, archive);
}

}  // namespace torchamp
