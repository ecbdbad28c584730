// Checkpoints: models in float32, optimizers, scalers and level, in one file for both languages.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/serialize/archive.h>
#include <torchamp/amp_state.h>
#include <torchamp/detail/export.h>
#include <torchamp/initialize.h>

#include <map>
#include <string>
#include <tuple>

namespace torchamp {
/// @addtogroup checkpoints
/// @{

/// A program's own entries of a checkpoint, by name. They are tensors, numbers, booleans, text and
/// None, and lists, tuples and dictionaries of those.
using Extra = std::map<std::string, c10::IValue>;

/// Writes models in float32 (the master's value if there is one), the optimizers' options and
/// states, the loss scalers, the level, and `extra`. Where the states of the
/// generators, as of dropout, are in `extra`, a resumed run is bit for bit identical to an
/// uninterrupted one.
///
/// The file contains only data: Python reads it by `amp.load` or `torch.load`, and C++ reads what
/// Python's `amp.save` wrote. In an archive it is one entry, "torchamp".
/// Throws for optimizers without a counterpart in Python: LBFGS, and your own classes unless they
/// derive from a supported one. Throws TypeError for an `extra` of other values.
TORCHAMP_API void save(Amp& amp, torch::serialize::OutputArchive& archive, const Extra& extra = {});
/// Writes a file, as to an archive. It replaces one of that name at once: if the process is killed
/// or the disk is full, the old file is still there. Throws RuntimeError where it cannot be
/// written.
TORCHAMP_API void save(Amp& amp, const std::string& path, const Extra& extra = {});

/// Reads what save(), here or in Python, wrote into models and optimizers that came from the same
/// initialize. Never runs code from a file. Returns the file's `extra`, tensors on the CPU.
/// Throws, and changes nothing, if the file is damaged or contains anything but data, or
/// was written at another opt level, with another number of losses or optimizers, for a model with
/// other names, sizes or types, or for another kind of optimizer, or lacks a value.
TORCHAMP_API Extra load(Amp& amp, torch::serialize::InputArchive& archive);
/// Reads a file, as from an archive.
TORCHAMP_API Extra load(Amp& amp, const std::string& path);

/// Writes all that initialize returned; `file`: a path or archive.
template <class T, class File, detail::IfAmped<T> = 0>
void save(const T& amped, File&& file, const Extra& extra = {}) {
  save(*amped.amp(), file, extra);
}

/// Reads into all that initialize returned; `file`: a path or archive.
template <class T, class File, detail::IfAmped<T> = 0>
Extra load(const T& amped, File&& file) {
  return load(*amped.amp(), file);
}

/// Writes a model and an optimizer, or several of each, and all that was given to their initialize.
/// Throws ValueError for those of two, and without a model.
///
/// models: a Model, or a vector or tuple of Models.
/// optimizers: an Optimizer, or a vector of Optimizers.
template <class Models, class Optimizers, class File, class = detail::IfHandles<Models, Optimizers>>
void save(const Models& models, const Optimizers& optimizers, File&& file,
          const Extra& extra = {}) {
  save(detail::common_amp("save", detail::amps_of(models), detail::amps_of(optimizers)), file,
       extra);
}

/// Reads into a model and an optimizer, or several of each, and all that was given to their
/// initialize.
template <class Models, class Optimizers, class File, class = detail::IfHandles<Models, Optimizers>>
Extra load(const Models& models, const Optimizers& optimizers, File&& file) {
  return load(detail::common_amp("load", detail::amps_of(models), detail::amps_of(optimizers)),
              file);
}

/// @cond
/// Any other call that finds no other function.
template <class T = void>
void save(const detail::AnyValue&, const detail::AnyValue& = 0, const detail::AnyValue& = 0,
          const detail::AnyValue& = 0) {
  static_assert(detail::never<T>,
                "save takes what initialize returned, and then the file: save(amped, path)");
}
template <class T = void>
void load(const detail::AnyValue&, const detail::AnyValue& = 0, const detail::AnyValue& = 0,
          const detail::AnyValue& = 0) {
  static_assert(detail::never<T>,
                "load takes what initialize returned, and then the file: load(amped, path)");
}
/// @endcond

/// @}

}  // namespace torchamp
