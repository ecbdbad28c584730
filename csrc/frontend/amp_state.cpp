#include <torchamp/amp_state.h>

#include <utility>

#include "checkpoint/float32_saves.h"
#include "frontend/session.h"

namespace torchamp {

Amp::Amp(std::vector<std::shared_ptr<torch::nn::Module>> models, const OptimizerRefs& optimizers,
         const Options& options)
    : session_(std::make_unique<Session>(std::move(models), optimizers, options)) {}

Amp::~Amp() = default;

const Options& Amp::options() const {
  return session_->options();
}

const Properties& Amp::properties() const {
  return session_->properties();
}

bool Amp::enabled() const {
  return session_->enabled();
}

LossScaler& Amp::loss_scaler(int64_t loss_id) const {
  return session_->loss_scaler(loss_id);
}

std::vector<LossScaler>& Amp::loss_scalers() const {
  return session_->loss_scalers();
}

at::Tensor Amp::value(const at::Tensor& tensor) const {
  return checkpoint::float32_of(tensor);
}

void Amp::close() const {
  session_->casts().close();
}

}  // namespace torchamp
