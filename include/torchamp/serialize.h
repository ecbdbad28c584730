// Checkpoints: models in float32, optimizers, scalers and level, in one file for both languages.
#pragma once

#include <torch/serialize/archive.h>
#include <torchamp/amp_state.h>
#include <torchamp/detail/export.h>
#include <torchamp/initialize.h>

#include <string>
#include <tuple>

namespace torchamp {
/// @addtogroup checkpoints
/// @{

/// Writes everything that training resumes from: models in float32 (the master's value if there is
/// one), the optimizers' options and states, the loss scalers and the level. A resumed
/// run is bit for bit identical to an uninterrupted one.
///
/// The file contains only data: Python reads it by `amp.load` or `torch.load`, and C++ reads what
/// Python's `amp.save` wrote. In an archive it is one entry, "torchamp".
/// Throws for optimizers without a counterpart in Python: LBFGS, and your own classes unless they
/// derive from a supported one.
TORCHAMP_API void save(Amp& amp, torch::serialize::OutputArchive& archive);
/// The same into a file, which replaces one of that name at once: if the process is killed or the
/// disk is full, the old file is still there. Throws RuntimeError where it cannot be written.
TORCHAMP_API void save(Amp& amp, const std::string& path);

/// Reads what save(), here or in Python, wrote into models and optimizers that came from the same
/// initialize. Never runs code from a file.
/// Throws, and changes nothing, if the file is damaged or contains anything but data, or
/// was written at another opt level, with another number of losses or optimizers, for a model with
/// other names, sizes or types, or for another kind of optimizer, or lacks a value.
TORCHAMP_API void load(Amp& amp, torch::serialize::InputArchive& archive);
/// The same from a file.
TORCHAMP_API void load(Amp& amp, const std::string& path);

/// The same of all that initialize returned; `file`: a path or archive.
template <class T, class File, detail::IfAmped<T> = 0>
void save(const T& amped, File&& file) {
  save(*detail::amp_of(amped), file);
}

/// The same into all that initialize returned; `file`: a path or archive.
template <class T, class File, detail::IfAmped<T> = 0>
void load(const T& amped, File&& file) {
  load(*detail::amp_of(amped), file);
}

/// The same of a model and an optimizer, and all that was given to their initialize. Throws
/// ValueError for those of two.
template <class M, class File>
void save(const Model<M>& model, const Optimizer& optimizer, File&& file) {
  save(detail::common_amp("save", model.amp(), optimizer), file);
}

/// The same into a model and an optimizer, and all that was given to their initialize.
template <class M, class File>
void load(const Model<M>& model, const Optimizer& optimizer, File&& file) {
  load(detail::common_amp("load", model.amp(), optimizer), file);
}

/// @}

}  // namespace torchamp
