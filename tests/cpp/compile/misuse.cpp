// Must not compile with -Werror: each mistake, and the expected compiler message. It follows
// clean.cpp, so that the two are compiled in one pass.
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>
#include <torchamp/autocast.h>
#include <torchamp/clip.h>
#include <torchamp/detail/graphed.h>
#include <torchamp/grad_scaler.h>
#include <torchamp/initialize.h>
#include <torchamp/optim/adam.h>
#include <torchamp/preflight.h>
#include <torchamp/scale_loss.h>
#include <torchamp/serialize.h>

struct OtherImpl : torch::nn::Module {};

// It would be gone, or a copy would be cast and stepped.
void initialize_a_module_by_value(NetImpl& net, torch::optim::Optimizer& optimizer) {
  torchamp::initialize(NetImpl(), optimizer, "O2");             // error: give it a variable
  torchamp::initialize(std::make_tuple(net), optimizer, "O2");  // error: would be a copy
}

void initialize_what_is_no_module(const std::shared_ptr<torch::optim::Optimizer>& optimizer) {
  (void)torchamp::initialize(optimizer, "O2");  // error: a model must be a torch::nn::Module
}

struct EnsembledImpl : torch::nn::Module {};

// A copy of each would be cast.
void initialize_a_vector_of_modules(std::vector<EnsembledImpl>& nets) {
  (void)torchamp::initialize(nets, "O2");  // error: in a tuple or vector a module would be a copy
}

void initialize_nothing(torch::optim::Adam& adam) {
  (void)torchamp::initialize(std::make_tuple(), adam, "O2");  // says: takes one model or more
}

void initialize_by_pointers(Net& net, NetImpl* module, torch::optim::Adam* adam,
                            const std::unique_ptr<torch::optim::Optimizer>& owned) {
  torchamp::initialize(module, *adam, "O2");  // error: takes the module itself, *model
  torchamp::initialize(net, adam, "O2");      // error: takes the optimizer itself: *optimizer
  torchamp::initialize(net, owned, "O2");     // error: or the std::unique_ptr by std::move
}

void initialize_with_no_reference_to_an_optimizer(
    Net& net, const torch::optim::Adam& fixed, std::vector<torch::optim::Adam>& copies,
    std::vector<std::unique_ptr<torch::optim::Optimizer>>& owned,
    const std::vector<torch::optim::Optimizer*>& pointers) {
  torchamp::initialize(net, fixed, "O2");     // error: can be stepped, not a const one
  torchamp::initialize(net, copies, "O2");    // error: several optimizers are given by reference
  torchamp::initialize(net, owned, "O2");     // error: several optimizers are given by reference
  torchamp::initialize(net, pointers, "O2");  // error: several optimizers are given by reference
  torchamp::initialize(net, torch::optim::AdamOptions(1e-3), "O2");  // error: parameters and these
}

void initialize_a_script(torch::jit::Module& script, torch::optim::Adam& adam) {
  torchamp::initialize(script, adam, "O2");  // error: initialize takes modules of torch::nn
}

void initialize_out_of_order(Net& net, torch::optim::Adam& adam, torchamp::Options options) {
  torchamp::initialize(adam, net, "O2");             // error: the model comes first
  torchamp::initialize("O2", net, adam);             // error: the model comes first
  torchamp::initialize(net, "O2", adam);             // error: a level such as "O2", in this order
  torchamp::initialize(net, 1e-3, "O2");             // error: a level such as "O2", in this order
  torchamp::initialize(net, adam, 2);                // error: an opt level is a text such as "O2"
  torchamp::initialize(net, adam, '2');              // error: an opt level is a text such as "O2"
  torchamp::initialize(net, adam, at::kHalf);        // error: a level such as "O2", in this order
  torchamp::initialize(net, adam, "O2", 128.0);      // error: options beside the level are setters
  torchamp::initialize(net, adam, "O2", "dynamic");  // error: options beside the level are setters
  torchamp::initialize(net, adam, "O2", options);    // error: options beside the level are setters
}

void initialize_several_in_a_row(Net& net, Net& other, torch::optim::Adam& adam) {
  torchamp::initialize(net, other, adam, "O2");          // error: go into std::tie(a, b)
  torchamp::initialize(net, adam, adam, "O2");           // error: optimizers into {adam, sgd}
  torchamp::initialize(net, other->parameters(), "O2");  // error: an optimizer and a level
}

void initialize_an_array_or_a_pair(std::array<Net, 2> nets, const std::pair<Net, Net>& pair,
                                   Net (&row)[2], Net* net, torch::optim::Adam& adam) {
  torchamp::initialize(nets, adam, "O2");  // error: models go into std::tie(a, b)
  torchamp::initialize(pair, adam, "O2");  // error: models go into std::tie(a, b)
  torchamp::initialize(row, adam, "O2");   // error: models go into std::tie(a, b)
  torchamp::initialize(net, adam, "O2");   // error: takes the module itself, *model
}

void initialize_a_model_again(torchamp::Model<Net>& model, torch::optim::Adam& adam) {
  torchamp::initialize(model, adam, "O2");  // error: a second time after torchamp::release(model)
}

// Nothing would scale the losses, or step the masters.
void drop_what_initialize_returns(Net& net, torch::optim::Adam& adam) {
  torchamp::initialize(net, adam, "O1");                  // error: nodiscard
  torchamp::initialize(net, "O1");                        // error: nodiscard
  torchamp::initialize(std::make_tuple(net, net), "O2");  // error: nodiscard
  torchamp::initialize(net, {adam, adam}, "O2");          // error: nodiscard
}

// Its parameters have masters already.
void initialize_an_optimizer_again(const Net& net, torchamp::Optimizer& optimizer,
                                   std::vector<torchamp::Optimizer>& optimizers) {
  torchamp::initialize(net, optimizer, "O2");   // error: that another initialize was given
  torchamp::initialize(net, optimizers, "O2");  // error: that another initialize was given
}

void initialize_models_in_braces(const Net& a, const Net& b, torch::optim::Adam& adam) {
  torchamp::initialize({a, b}, {adam}, "O2");  // error: std::make_tuple(a, b), {adam, sgd}
}

void initialize_a_model_that_is_not_shared(const std::unique_ptr<NetImpl>& net,
                                           torch::optim::Adam& adam) {
  torchamp::initialize(net, adam, "O2");  // error: make it with std::make_shared
}

void make_nothing() {
  torchamp::Amped<Net> amped;  // says: initialize makes Models
  torchamp::Optimizer nobody;  // says: initialize makes Optimizers
}

// Any pointer would be true.
void choose_by_text() {
  torchamp::Options("O2").master_weights("False");  // error: takes a bool, not a text
  torchamp::Options("O5").float8("blocks");         // error: takes a bool, not a text
}

// It would be 1.
void scale_by_a_bool(bool use_amp) {
  torchamp::Options("O2").loss_scale(use_amp);  // says: loss_scale takes "dynamic" or a number
  torchamp::GradScaler scaler(use_amp);         // says: GradScalerOptions().enabled(use_amp)
}

void make_a_fused_optimizer_of_a_net(const Net& net) {
  torchamp::optim::FusedAdam adam(net, 1e-3);  // says: a fused optimizer takes parameters
}

// LibTorch's functions take parameters, torchamp's optimizers.
void clip_what_is_no_optimizer(const Net& net, const torchamp::Amped<Net>& amped) {
  torchamp::clip_grad_norm_(net->parameters(), 1.0);  // error: clip_grad_norm_ takes the optimizer
  torchamp::clip_grad_norm_(amped, 1.0);              // error: clip_grad_norm_ takes the optimizer
  torchamp::clip_grad_value_(amped, 1.0);             // error: clip_grad_value_ takes the optimizer
}

struct DecoderImpl : torch::nn::Module {
  at::Tensor decode(const at::Tensor& x, double scale = 1) { return x * scale; }
};

void call_the_modules_functions(const torchamp::Model<Net>& model, const at::Tensor& x,
                                const torchamp::Model<std::shared_ptr<DecoderImpl>>& decoder,
                                const torchamp::Model<std::shared_ptr<torch::nn::Module>>& any) {
  model.train();                          // error: model->train()
  decoder.call(&DecoderImpl::decode, x);  // says: a pointer to it knows no default arguments
  any(x);                                 // says: torch::nn::Module has no forward
  model(x, x);                            // error: deleted
}

void call_a_list(const torchamp::Model<torch::nn::ModuleList>& layers, const at::Tensor& x) {
  layers(x);  // error: deleted
}

// LibTorch's files have no masters and loss scales.
void save_by_torch(torchamp::Amped<Net>& amped) {
  torch::save(amped, "net.pt");            // error: torchamp::save(amped, path)
  torch::save(amped.optimizer, "net.pt");  // error: torchamp::save(amped, path)
  torch::load(amped, "net.pt");            // error: torchamp::load(amped, path)
}

void save_what_initialize_was_given(Net& net, torch::optim::Adam& adam,
                                    torchamp::Amped<Net>& amped) {
  torchamp::save(net, adam, "net.pt");  // error: and then the file: save(amped, path)
  torchamp::load("net.pt", amped);      // error: and then the file: load(amped, path)
  torchamp::release(net);               // error: release takes what initialize returned: amped
}

// A batch alone, or the net in the place of the model that calls it at a level.
void try_without_a_function(Net& net, const at::Tensor& x) {
  torchamp::preflight(net, x);  // error: takes a function of a model
  const auto loss_of_net = [&](Net& own) { return own->forward(x).sum(); };
  torchamp::preflight(net, loss_of_net);  // error: takes a function of a model
}

// Its backward would run without scale_loss.
void train(torch::optim::Optimizer& optimizer);
void train_by_what_knows_no_amp(torchamp::Optimizer& optimizer) {
  train(optimizer);                              // error: let it take a torchamp::Optimizer&
  torch::optim::StepLR schedule(optimizer, 10);  // says: schedulers optimizer.wrapped()
}

void scale_for_what_initialize_was_given(const at::Tensor& loss, torch::optim::Adam& adam) {
  torchamp::scale_loss(loss, adam).backward();  // error: not the one that initialize was given
}

void scale_for_all_that_initialize_returned(const at::Tensor& loss, torchamp::Amped<Net>& amped) {
  torchamp::scale_loss(loss, amped).backward();  // error: a loss and the optimizer
}

void scale_for_what_is_no_optimizer(const at::Tensor& loss, torchamp::Amped<Net>& amped) {
  torchamp::scale_loss(loss, amped.model).backward();       // error: a loss and the optimizer
  torchamp::scale_loss(loss, &amped.optimizer).backward();  // error: a loss and the optimizer
  torchamp::scale_loss(amped.optimizer, loss).backward();   // error: a loss and the optimizer
  torchamp::scale_loss(1.0, amped.optimizer).backward();    // error: a loss and the optimizer
  torchamp::scale_loss(loss).backward();                    // error: takes the optimizer too
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

void replay_a_number(const std::function<at::Tensor(const at::Tensor&)>& iteration) {
  torchamp::detail::Graphed graphed(iteration, {}, 8);
  graphed(1);  // says: the function of graphed takes tensors
}

// Guards that are destroyed before any backward or other code runs in them.
void scale_for_nothing(const at::Tensor& loss, const std::vector<torchamp::Optimizer>& optimizers) {
  torchamp::scale_loss(loss, optimizers.front());                                // error: nodiscard
  torchamp::scale_loss(loss, optimizers);                                        // error: nodiscard
  torchamp::scale_loss(loss, optimizers.front(), torchamp::ScaleLossOptions());  // error: nodiscard
}

void guard_nothing(const torchamp::AutocastState& casts) {
  torchamp::autocast(c10::kCUDA, c10::kHalf);  // error: nodiscard
  const torchamp::autocast half(c10::kHalf);   // error: autocast takes a device
  const torchamp::autocast off(c10::kCPU, c10::kHalf,
                               false);           // error: autocast takes what is beside
  const torchamp::GradScaler scaler(1024., 2.);  // error: GradScaler takes its options by name
  torchamp::disable_casts();                     // error: nodiscard
  casts.apply();                                 // error: nodiscard
}
