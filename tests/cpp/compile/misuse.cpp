// Must not compile with -Werror: each mistake, and the expected compiler message.
#include <torchamp/autocast.h>
#include <torchamp/grad_scaler.h>
#include <torchamp/initialize.h>
#include <torchamp/scale_loss.h>

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(Net);

// The copy would be cast and stepped, not the net.
void initialize_a_module_by_value(NetImpl& net, torch::optim::Optimizer& optimizer) {
  torchamp::initialize(net, optimizer, "O2");  // error: a model must be a holder
}

void initialize_what_is_no_module(const std::shared_ptr<torch::optim::Optimizer>& optimizer) {
  torchamp::initialize(optimizer, "O2");  // error: a model must be a torch::nn::Module
}

// Its groups already contain masters.
void initialize_an_optimizer_again(const Net& net, torchamp::Optimizer& optimizer) {
  torchamp::initialize(net, optimizer, "O2");  // error: deleted
}

struct Output {
  at::Tensor logits;
};
struct OpaqueImpl : torch::nn::Module {
  Output forward(const at::Tensor& x) { return {x}; }
};
TORCH_MODULE(Opaque);

// The logits would stay in float16.
void return_what_nobody_can_look_into(torchamp::Model<Opaque>& model, const at::Tensor& x) {
  model(x);  // says: forward returns a type in which torchamp cannot find tensors
}

// Its grads were unscaled by scale_loss.
void step_by_two_scalers(torchamp::GradScaler& scaler, torchamp::Optimizer& optimizer) {
  scaler.step(optimizer);  // error: deleted
}

// Guards that are destroyed before any backward or other code runs in them.
void scale_for_nothing(const at::Tensor& loss, const std::vector<torchamp::Optimizer>& optimizers) {
  torchamp::scale_loss(loss, optimizers.front());                                // error: nodiscard
  torchamp::scale_loss(loss, optimizers);                                        // error: nodiscard
  torchamp::scale_loss(loss, optimizers.front(), torchamp::ScaleLossOptions());  // error: nodiscard
}

void guard_nothing(const torchamp::AutocastState& casts) {
  torchamp::autocast(c10::kCUDA, c10::kHalf);  // error: nodiscard
  torchamp::disable_casts();                   // error: nodiscard
  casts.apply();                               // error: nodiscard
}
