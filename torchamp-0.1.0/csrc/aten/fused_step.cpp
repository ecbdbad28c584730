#include "aten/fused_step.h"

#include <ATen/ops/addcdiv.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "aten/rounding.h"

namespace torchamp::aten {
namespace {

using at::Tensor;

/// One tensor's step. Scalars are 0-dim float64, which leave the dtype of tensors alone; the
/// formulas are those of math/optim.
struct Element {
  Tensor grad;  ///< multiplied by grad_factor, negated to maximize
  Tensor param;
  std::vector<Tensor> states;
  std::vector<Tensor> hyper;
  Tensor step;
  Tensor param_norm;
  Tensor update_norm;
  Tensor norm_average;

  Tensor correction(const Tensor& beta, const Tensor& wanted) const {
    return at::where(wanted.ne(0), at::pow(beta, step).neg().add(1), at::ones_like(beta));
  }
};

Tensor complement(const Tensor& value) {
  return value.neg().add(1);
}

/// value where `condition` is not 0, else 0.
Tensor only_if(const Tensor& condition, const Tensor& value) {
  return at::where(condition.ne(0), value, at::zeros({}, value.options()));
}

void adam(Element& e, bool keeps_maximum) {
  const Tensor &lr = e.hyper[0], &beta1 = e.hyper[1], &beta2 = e.hyper[2], &eps = e.hyper[3];
  const Tensor &decay = e.hyper[4], &decoupled = e.hyper[5], &corrects = e.hyper[7];
  const Tensor early = only_if(decoupled.eq(0), decay), late = only_if(decoupled, decay);
  const Tensor grad = e.grad.add(e.param.mul(early));
  e.states[0] = e.states[0].mul(beta1).add(grad.mul(complement(beta1)));
  e.states[1] = e.states[1].mul(beta2).add(grad.square().mul(complement(beta2)));
  if (keeps_maximum) e.states[2] = at::maximum(e.states[2], e.states[1]);
  const Tensor root = e.states[keeps_maximum ? 2 : 1].div(e.correction(beta2, corrects)).sqrt();
  const Tensor step = e.states[0].div(e.correction(beta1, corrects)).div(root.add(eps));
  e.param = e.param.mul(complement(lr.mul(late))).sub(step.mul(lr));
}

/// LARS: the largest update of a tensor relative to its norm.
Tensor trust_ratio(const Element& e) {
  const Tensor &lr = e.hyper[0], &decay = e.hyper[3];
  const Tensor &coefficient = e.hyper[7], &eps = e.hyper[8], &clips = e.hyper[9];
  const Tensor length = e.update_norm.add(decay.mul(e.param_norm)).add(eps);
  const Tensor rate = coefficient.mul(e.param_norm).div(length);
  const Tensor clipped = at::minimum(rate.div(lr), at::ones_like(rate));
  const Tensor ratio = at::where(clips.ne(0), clipped, rate);
  const Tensor adapts =
      coefficient.ne(0).logical_and(e.param_norm.ne(0)).logical_and(e.update_norm.ne(0));
  return at::where(adapts, ratio, at::ones_like(ratio));
}

void sgd(Element& e, bool has_momentum) {
  const Tensor &lr = e.hyper[0], &momentum = e.hyper[1], &dampening = e.hyper[2];
  const Tensor &decay = e.hyper[3], &nesterov = e.hyper[4], &late = e.hyper[6];
  const Tensor trust = trust_ratio(e), first = e.step.le(1);
  Tensor direction = e.grad.add(e.param.mul(only_if(late.eq(0), decay))).mul(trust);
  if (has_momentum) {
    const Tensor undampened = at::where(first, at::ones_like(dampening), complement(dampening));
    const Tensor kept = only_if(first.logical_not(), momentum);
    e.states[0] = e.states[0].mul(kept).add(direction.mul(undampened));
    const Tensor ahead = direction.add(e.states[0].mul(momentum));
    direction = at::where(nesterov.ne(0), ahead, e.states[0]);
  }
  direction = direction.add(e.param.mul(only_if(late, decay)));
  e.param = e.param.sub(direction.mul(lr));
}

void adagrad(Element& e) {
  const Tensor &eps = e.hyper[2], &decay = e.hyper[3], &decoupled = e.hyper[4];
  const Tensor lr = e.hyper[0].div(e.step.sub(1).mul(e.hyper[1]).add(1));
  const Tensor grad = e.grad.add(e.param.mul(only_if(decoupled.eq(0), decay)));
  e.states[0] = e.states[0].add(grad.square());
  const Tensor step = grad.div(e.states[0].sqrt().add(eps));
  e.param = e.param.mul(complement(lr.mul(only_if(decoupled, decay)))).sub(step.mul(lr));
}

void novo_grad(Element& e) {
  const Tensor &lr = e.hyper[0], &beta1 = e.hyper[1], &beta2 = e.hyper[2], &eps = e.hyper[3];
  const Tensor &decay = e.hyper[4], &corrects = e.hyper[6], &early = e.hyper[7];
  const Tensor starts = e.step.le(1).logical_and(e.hyper[9].eq(0));
  const Tensor share = at::where(e.hyper[8].ne(0), complement(beta1), at::ones_like(beta1));
  const Tensor square =
      e.norm_average.square().mul(beta2).add(e.update_norm.square().mul(complement(beta2)));
  e.norm_average = at::where(starts, e.update_norm, square.sqrt());
  const Tensor divisor = e.norm_average.div(e.correction(beta2, corrects).sqrt()).add(eps);
  const Tensor normed = e.grad.div(divisor).add(e.param.mul(decay));
  const Tensor grad = at::where(early.ne(0), normed, e.grad);
  e.states[0] = e.states[0].mul(beta1).add(grad.mul(share));
  const Tensor corrected = e.states[0].div(e.correction(beta1, corrects));
  const Tensor late = corrected.div(divisor).add(e.param.mul(decay));
  e.param = e.param.sub(at::where(early.ne(0), corrected, late).mul(lr));
}

/// update_norm is the total norm of all grads.
Tensor lamb_clipping(const Element& e) {
  const Tensor& limit = e.hyper[10];
  const Tensor clips = limit.gt(0).logical_and(e.update_norm.gt(limit));
  return at::where(clips, limit.div(e.update_norm), at::ones_like(limit));
}

void lamb_update(Element& e) {
  const Tensor &beta1 = e.hyper[1], &beta2 = e.hyper[2], &eps = e.hyper[3];
  const Tensor &decay = e.hyper[4], &decoupled = e.hyper[5], &corrects = e.hyper[7];
  const Tensor share = at::where(e.hyper[8].ne(0), complement(beta1), at::ones_like(beta1));
  const Tensor clipped = e.grad.mul(lamb_clipping(e));
  const Tensor grad = clipped.add(e.param.mul(only_if(decoupled.eq(0), decay)));
  e.states[0] = e.states[0].mul(beta1).add(grad.mul(share));
  e.states[1] = e.states[1].mul(beta2).add(grad.square().mul(complement(beta2)));
  const Tensor root = e.states[1].div(e.correction(beta2, corrects)).sqrt().add(eps);
  const Tensor update = e.states[0].div(e.correction(beta1, corrects)).div(root);
  e.states[2] = update.add(e.param.mul(only_if(decoupled, decay)));
}

void lamb_apply(Element& e) {
  const Tensor adapts = e.hyper[9].ne(0).logical_or(e.hyper[4].ne(0));
  const Tensor moves = e.param_norm.ne(0).logical_and(e.update_norm.ne(0));
  const Tensor ratio = e.param_norm.div(e.update_norm);
  const Tensor used = at::where(adapts.logical_and(moves), ratio, at::ones_like(ratio));
  e.param = e.param.sub(e.grad.mul(used.mul(e.hyper[0])));
}

void step(StepAlgorithm algorithm, Element& e) {
  switch (algorithm) {
    case StepAlgorithm::kAdam:
      return adam(e, false);
    case StepAlgorithm::kAmsGrad:
      return adam(e, true);
    case StepAlgorithm::kSgd:
      return sgd(e, false);
    case StepAlgorithm::kMomentum:
      return sgd(e, true);
    case StepAlgorithm::kAdagrad:
      return adagrad(e);
    case StepAlgorithm::kNovoGrad:
      return novo_grad(e);
    case StepAlgorithm::kLambUpdate:
      return lamb_update(e);
    case StepAlgorithm::kLambApply:
      return lamb_apply(e);
  }
}

/// The column of the algorithm's `maximize`; -1: none.
int64_t maximize_column(StepAlgorithm algorithm) {
  switch (algorithm) {
    case StepAlgorithm::kSgd:
    case StepAlgorithm::kMomentum:
    case StepAlgorithm::kAdagrad:
    case StepAlgorithm::kNovoGrad:
      return 5;
    case StepAlgorithm::kLambApply:
      return -1;
    default:
      return 6;
  }
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

class Step {
 public:
  Step(StepAlgorithm algorithm, const StepLists& lists, const StepScalars& scalars)
      : algorithm_(algorithm), lists_(lists), scalars_(scalars), rows_(on_device(scalars)) {
    const auto bools = scalars.steps.options().dtype(at::kBool);
    runs_ = scalars.skip ? scalars.skip->reshape({}).eq(0) : at::ones({}, bools);
  }

  void run(int64_t i) const {
    Element e = element(i);
    step(algorithm_, e);
    if (algorithm_ != StepAlgorithm::kLambApply) write(e.step, scalars_.steps.select(0, i));
    if (scalars_.norm_averages) write(e.norm_average, scalars_.norm_averages->select(0, i));
    for (size_t s = 0; s < e.states.size(); ++s) write_stochastically(e.states[s], state(i, s));
    write_param(e.param, i);
    if (lists_.model_params.empty() || !lists_.model_params[i].defined()) return;
    write(e.param, lists_.model_params[i]);
  }

 private:
  void write(const Tensor& result, const Tensor& target) const {
    target.copy_(at::where(runs_, result.to(target.scalar_type()), target));
  }

  void write_stochastically(const Tensor& result, const Tensor& target) const {
    const bool stochastic = target.scalar_type() == at::kBFloat16;
    write(stochastic ? round_stochastically(result.to(at::kFloat)) : result, target);
  }

  void write_param(const Tensor& result, int64_t i) const {
    const Tensor& param = lists_.params[i];
    if (scalars_.stochastic_rounding) {
      write_stochastically(result, param);
    } else {
      write(result, param);
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

  Element element(int64_t i) const {
    Element e;
    e.param = wide_param(i);
    const auto wide = e.param.scalar_type();
    const int64_t group = scalars_.groups.const_data_ptr<int32_t>()[i];
    e.hyper = rows_.select(0, group).unbind();
    if (!scalars_.lrs.empty() && scalars_.lrs[group].defined()) {
      e.hyper[0] = scalars_.lrs[group].to(at::kDouble).reshape({});
    }
    e.grad = lists_.grads[i].to(wide);
    const bool has_updates = algorithm_ == StepAlgorithm::kLambApply;
    if (scalars_.grad_factor && !has_updates && !is_unscaled(i)) {
      e.grad = e.grad.mul(scalars_.grad_factor->reshape({}));
    }
    const int64_t maximize = maximize_column(algorithm_);
    if (maximize >= 0) e.grad = at::where(e.hyper[maximize].ne(0), e.grad.neg(), e.grad);
    for (int64_t s = 0; s < states_of(algorithm_); ++s) e.states.push_back(state(i, s).to(wide));
    e.step = scalars_.steps.select(0, i).to(at::kDouble).add(has_updates ? 0 : 1);
    e.param_norm = number_at(scalars_.param_norms, i, e.step);
    e.update_norm = number_at(scalars_.update_norms, i, e.step);
    e.norm_average = number_at(scalars_.norm_averages, i, e.step);
    return e;
  }

  StepAlgorithm algorithm_;
  const StepLists& lists_;
  const StepScalars& scalars_;
  Tensor rows_;
  Tensor runs_;
};

}  // namespace

void fused_step(const Positions& positions, StepAlgorithm algorithm, const StepLists& lists,
                const StepScalars& scalars) {
  if (positions.empty()) return;
  const Step step(algorithm, lists, scalars);
  for (const int64_t i : positions) step.run(i);
}

}  // namespace torchamp::aten
