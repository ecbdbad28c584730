// Checkpoints: models in float32, optimizers, scalers and level in one torch::serialize archive.
#pragma once

#include <torch/serialize/archive.h>
#include <torchamp/amp_state.h>
#include <torchamp/export.h>
#include <torchamp/initialize.h>

#include <string>

namespace torchamp {
/// @addtogroup checkpoints
/// @{

/// Writes everything that training goes on from. Model parameters are written in float32: the
/// master's value where there is one, so that a run that saved and loaded is bit for bit the run
/// that never stopped.
TORCHAMP_API void save(Amp& amp, torch::serialize::OutputArchive& archive);
/// The same into a file.
TORCHAMP_API void save(Amp& amp, const std::string& path);

/// Reads what save() wrote into models and optimizers that came from the same initialize.
/// Throws, and leaves everything as it was, if the file is damaged, or was written at another opt
/// level, with another number of losses or optimizers, or for a model with other parameters.
TORCHAMP_API void load(Amp& amp, torch::serialize::InputArchive& archive);
/// The same from a file.
TORCHAMP_API void load(Amp& amp, const std::string& path);

/// The same of what initialize returned for one model and one optimizer; `file`: a path or archive.
template <class M, class File>
void save(const Amped<M>& amped, File&& file) {
  save(*amped.model.amp(), file);
}

/// The same into what initialize returned for one model and one optimizer; `file`: a path or
/// archive.
template <class M, class File>
void load(const Amped<M>& amped, File&& file) {
  load(*amped.model.amp(), file);
}

/// @}

}  // namespace torchamp
