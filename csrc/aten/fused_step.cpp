#include "aten/fused_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "aten/rounding.h"

namespace torchamp::aten {
namespace {

using at::Tensor;

/// One tensor's step. Scalars are 0-dim float64, which leave the dtype of tensors alone; the
/// formulas are those of math/optim.
template <class Rule>
struct Element {
  Tensor grad;  ///< multiplied by grad_factor, negated to maximize
  Tensor param;
  std::vector<Tensor> states;
  typename Rule::template HyperOf<Tensor> hyper;
  Tensor step;
  Tensor param_norm;
  Tensor update_norm;
  Tensor norm_average;

  /// The correction of a moment's bias, if the hyperparameters want that.
  Tensor correction(const Tensor& beta) const {
    const Tensor corrected = at::pow(beta, step).neg().add(1);
    return at::where(hyper.bias_correction.ne(0), corrected, at::ones_like(beta));
  }
};

Tensor complement(const Tensor& value) {
  return value.neg().add(1);
}

/// value where `condition` is not 0, else 0.
Tensor only_if(const Tensor& condition, const Tensor& value) {
  return at::where(condition.ne(0), value, at::zeros({}, value.options()));
}

void step(Element<Adam>& e) {
  const auto& h = e.hyper;
  const Tensor early = only_if(h.decoupled.eq(0), h.weight_decay);
  const Tensor late = only_if(h.decoupled, h.weight_decay);
  const Tensor grad = e.grad.add(e.param.mul(early));
  e.states[0] = e.states[0].mul(h.beta1).add(grad.mul(complement(h.beta1)));
  e.states[1] = e.states[1].mul(h.beta2).add(grad.square().mul(complement(h.beta2)));
  const Tensor root = e.states[1].div(e.correction(h.beta2)).sqrt();
  const Tensor step = e.states[0].div(e.correction(h.beta1)).div(root.add(h.eps));
  e.param = e.param.mul(complement(h.lr.mul(late))).sub(step.mul(h.lr));
}

template <class Rule>
void step_sgd(Element<Rule>& e) {
  const auto& h = e.hyper;
  const Tensor &late = h.decay_after_momentum, &decay = h.weight_decay;
  const Tensor first = e.step.le(1);
  Tensor direction = e.grad.add(e.param.mul(only_if(late.eq(0), decay)));
  if (Rule::kStates > 0) {
    const Tensor undampened = at::where(first, at::ones_like(h.dampening), complement(h.dampening));
    const Tensor kept = only_if(first.logical_not(), h.momentum);
    e.states[0] = e.states[0].mul(kept).add(direction.mul(undampened));
    const Tensor ahead = direction.add(e.states[0].mul(h.momentum));
    direction = at::where(h.nesterov.ne(0), ahead, e.states[0]);
  }
  direction = direction.add(e.param.mul(only_if(late, decay)));
  e.param = e.param.sub(direction.mul(h.lr));
}

void step(Element<Sgd>& e) {
  step_sgd(e);
}

void step(Element<Momentum>& e) {
  step_sgd(e);
}

/// The weight of a new grad in the first moment.
template <class Hyper>
Tensor share_of_grad(const Hyper& hyper) {
  const Tensor& beta1 = hyper.beta1;
  return at::where(hyper.averages_grads.ne(0), complement(beta1), at::ones_like(beta1));
}

void step(Element<NovoGrad>& e) {
  const auto& h = e.hyper;
  const Tensor& early = h.decay_in_moment;
  const Tensor starts = e.step.le(1).logical_and(h.starts_at_zero.eq(0));
  const Tensor square =
      e.norm_average.square().mul(h.beta2).add(e.update_norm.square().mul(complement(h.beta2)));
  e.norm_average = at::where(starts, e.update_norm, square.sqrt());
  const Tensor divisor = e.norm_average.div(e.correction(h.beta2).sqrt()).add(h.eps);
  const Tensor normed = e.grad.div(divisor).add(e.param.mul(h.weight_decay));
  const Tensor grad = at::where(early.ne(0), normed, e.grad);
  e.states[0] = e.states[0].mul(h.beta1).add(grad.mul(share_of_grad(h)));
  const Tensor corrected = e.states[0].div(e.correction(h.beta1));
  const Tensor late = corrected.div(divisor).add(e.param.mul(h.weight_decay));
  e.param = e.param.sub(at::where(early.ne(0), corrected, late).mul(h.lr));
}

/// update_norm is the total norm of all grads.
Tensor lamb_clipping(const Element<LambUpdate>& e) {
  const Tensor& limit = e.hyper.max_grad_norm;
  const Tensor clips = limit.gt(0).logical_and(e.update_norm.gt(limit));
  return at::where(clips, limit.div(e.update_norm), at::ones_like(limit));
}

void step(Element<LambUpdate>& e) {
  const auto& h = e.hyper;
  const Tensor clipped = e.grad.mul(lamb_clipping(e));
  const Tensor grad = clipped.add(e.param.mul(only_if(h.decoupled.eq(0), h.weight_decay)));
  e.states[0] = e.states[0].mul(h.beta1).add(grad.mul(share_of_grad(h)));
  e.states[1] = e.states[1].mul(h.beta2).add(grad.square().mul(complement(h.beta2)));
  const Tensor root = e.states[1].div(e.correction(h.beta2)).sqrt().add(h.eps);
  const Tensor update = e.states[0].div(e.correction(h.beta1)).div(root);
  e.states[2] = update.add(e.param.mul(only_if(h.decoupled, h.weight_decay)));
}

void step(Element<LambApply>& e) {
  const Tensor adapts = e.hyper.always_adapts.ne(0).logical_or(e.hyper.weight_decay.ne(0));
  const Tensor moves = e.param_norm.ne(0).logical_and(e.update_norm.ne(0));
  const Tensor ratio = e.param_norm.div(e.update_norm);
  const Tensor used = at::where(adapts.logical_and(moves), ratio, at::ones_like(ratio));
  e.param = e.param.sub(e.grad.mul(used.mul(e.hyper.lr)));
}

Tensor number_at(const std::optional<Tensor>& row, int64_t i, const Tensor& like) {
  return row ? row->select(0, i).to(at::kDouble) : at::zeros({}, like.options());
}

/// The rows on the step's device. Filling them in can be captured into a graph, copying them
/// cannot.
Tensor on_device(const StepScalars& scalars) {
  const at::Device device = scalars.steps.device();
  if (scalars.hyper.device() == device) return scalars.hyper;
  const Tensor rows = at::empty(scalars.hyper.sizes(), scalars.hyper.options().device(device));
  const double* const values = scalars.hyper.const_data_ptr<double>();
  for (int64_t k = 0; k < rows.numel(); ++k) rows.view(-1).select(0, k).fill_(values[k]);
  return rows;
}

template <class Rule>
class Step {
  using HyperOfRule = typename Rule::template HyperOf<Tensor>;

 public:
  Step(const StepLists& lists, const StepScalars& scalars)
      : lists_(lists), scalars_(scalars), rows_(on_device(scalars)) {
    const auto bools = scalars.steps.options().dtype(at::kBool);
    runs_ = scalars.skip ? scalars.skip->reshape({}).eq(0) : at::ones({}, bools);
  }

  void run(int64_t i) const {
    Element<Rule> e = element(i);
    step(e);
    if (Rule::kCounts) write(e.step, scalars_.steps.select(0, i));
    if (scalars_.norm_averages) write(e.norm_average, scalars_.norm_averages->select(0, i));
    for (size_t s = 0; s < e.states.size(); ++s) {
      const int list = static_cast<int>(s) + 2;
      write_stochastically(e.states[s], state(i, s), {i, e.step, list});
    }
    write_param(e, i);
    if (lists_.model_params.empty() || !lists_.model_params[i].defined()) return;
    write(e.param, lists_.model_params[i]);
  }

 private:
  void write(const Tensor& result, const Tensor& target) const {
    target.copy_(at::where(runs_, result.to(target.scalar_type()), target));
  }

  void write_stochastically(const Tensor& result, const Tensor& target, const NoiseOf& of) const {
    const bool stochastic = target.scalar_type() == at::kBFloat16;
    write(stochastic ? round_stochastically(result.to(at::kFloat), target, of) : result, target);
  }

  void write_param(const Element<Rule>& e, int64_t i) const {
    const Tensor& param = lists_.params[i];
    if (scalars_.stochastic_rounding) {
      write_stochastically(e.param, param, {i, e.step, /*list=*/1});
    } else {
      write(e.param, param);
    }
  }

  Tensor wide_param(int64_t i) const {
    const Tensor& param = lists_.params[i];
    return param.to(param.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }

  const Tensor& state(int64_t i, size_t s) const {
    return lists_.states[s * lists_.grads.size() + static_cast<size_t>(i)];
  }

  bool is_unscaled(int64_t i) const {
    return std::find(lists_.unscaled.begin(), lists_.unscaled.end(), i) != lists_.unscaled.end();
  }

  template <size_t... kColumn>
  static HyperOfRule named(const std::vector<Tensor>& row, std::index_sequence<kColumn...>) {
    return {row[kColumn]...};
  }

  /// The row of position i, by name.
  HyperOfRule hyper_of(int64_t i) const {
    constexpr size_t kColumns = sizeof(typename Rule::Hyper) / sizeof(double);
    const int64_t group = scalars_.groups.const_data_ptr<int32_t>()[i];
    const std::vector<Tensor> row = rows_.select(0, group).unbind();
    HyperOfRule hyper = named(row, std::make_index_sequence<kColumns>());
    if (!scalars_.lrs.empty() && scalars_.lrs[group].defined()) {
      hyper.lr = scalars_.lrs[group].to(at::kDouble).reshape({});
    }
    return hyper;
  }

  Element<Rule> element(int64_t i) const {
    Element<Rule> e;
    e.param = wide_param(i);
    const auto wide = e.param.scalar_type();
    e.hyper = hyper_of(i);
    e.grad = lists_.grads[i].to(wide);
    constexpr bool kTakesUpdates = !Rule::kCounts;
    if (scalars_.grad_factor && !kTakesUpdates && !is_unscaled(i)) {
      e.grad = e.grad.mul(scalars_.grad_factor->reshape({}));
    }
    if (!kTakesUpdates) e.grad = at::where(e.hyper.maximize.ne(0), e.grad.neg(), e.grad);
    for (int s = 0; s < Rule::kStates; ++s) e.states.push_back(state(i, s).to(wide));
    e.step = scalars_.steps.select(0, i).to(at::kDouble).add(kTakesUpdates ? 0 : 1);
    e.param_norm = number_at(scalars_.param_norms, i, e.step);
    e.update_norm = number_at(scalars_.update_norms, i, e.step);
    e.norm_average = number_at(scalars_.norm_averages, i, e.step);
    return e;
  }

  const StepLists& lists_;
  const StepScalars& scalars_;
  Tensor rows_;
  Tensor runs_;
};

template <class Rule>
void step_all(const Positions& positions, const StepLists& lists, const StepScalars& scalars) {
  const Step<Rule> step(lists, scalars);
  for (const int64_t i : positions) step.run(i);
}

}  // namespace

void fused_step(const Positions& positions, StepAlgorithm algorithm, const StepLists& lists,
                const StepScalars& scalars) {
  if (positions.empty()) return;
  switch (static_cast<Algorithm>(algorithm)) {
#define TORCHAMP_CASE(Name, name) \
  case Algorithm::k##Name:        \
    return step_all<Name>(positions, lists, scalars);
    TORCHAMP_ALGORITHMS(TORCHAMP_CASE)
#undef TORCHAMP_CASE
  }
}

}  // namespace torchamp::aten
