// Every sequence of three things, in `make soak` four, that may happen to one parameter, by
// core::Backward and core::Step, against plain arithmetic: a step uses the sum of the grads of all
// backwards since the last zeroing or step, each unscaled by its own scale, with what the program
// has done to that sum in between.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/backward.h"
#include "core/step.h"
#include "errors.h"
#include "optim/fused_stepper.h"
#include "tensors.h"

namespace torchamp::core {
namespace {

using at::Tensor;

/// Of a parameter.
enum class Kind { kFloat16WithMaster, kFloat32, kFloat16 };
/// Of its optimizer: any, whose masters show grads or not; or a fused one, whose steps may unscale.
enum class Steps { kShown, kLent, kFused, kLazy };

struct Way {
  Kind kind;
  Steps steps;

  bool has_master() const { return kind == Kind::kFloat16WithMaster; }
  bool is_lazy() const { return steps == Steps::kLazy; }
  bool is_fused() const { return steps == Steps::kFused || is_lazy(); }
};

constexpr float kStart = 8;

class Run {
 public:
  explicit Run(const Way& way)
      : way_(way),
        model_(tensor_of({kStart, kStart}, way.kind == Kind::kFloat32 ? at::kFloat : at::kHalf)),
        master_(way.has_master() ? model_.to(at::kFloat) : model_) {
    state_->masters().adopt_data_writes();
    state_->add("Run", model_, master_);
    state_->grads().one_pass().switch_to(way.is_lazy());
    if (way.steps == Steps::kShown) state_->show_grads();
    scalers_[0].set_loss_scale(256);
    scalers_[1].set_loss_scale(32);
  }

  /// Of a loss of the parameter, or of its master.
  void backward(float grad, const BackwardOptions& options, bool is_of_master = false,
                bool is_raising = false) {
    Backward backward({state_}, scaler(), options);
    backward.prepare();
    add(is_of_master ? master_ : model_, grad * static_cast<float>(scaler().loss_scale()));
    if (!is_raising) backward.finish();
  }
  void step() {
    Step step(state_, {&scalers_[0], &scalers_[1]}, way_.is_fused());
    step.begin("step");
    if (way_.is_fused()) {
      step_fused();
    } else if (!state_->overflows().any() && grad().defined()) {
      model_.sub_(grad());
    }
    step.finish();
  }
  void zero(bool set_to_none) {
    if (set_to_none) grad().reset();
    if (grad().defined()) grad().zero_();
    state_->note_zeroed();
  }
  void set_none() { grad().reset(); }
  void assign(float value) { grad() = at::full_like(model_, value); }
  void double_grad() {
    if (grad().defined()) grad().mul_(2);
  }
  void write_model(float value) { model_.fill_(value); }
  void write_data(float value) { model_.variable_data().fill_(value); }
  void write_master(float value) { master_.fill_(value); }
  void write_master_data(float value) {
    master_.variable_data().fill_(value);
    is_master_hidden_ = true;
  }
  void move_scale() { scaler().set_loss_scale(scaler().loss_scale() == 256 ? 64 : 256); }
  void change_loss() { loss_ = 1 - loss_; }

  /// The model's grad.
  std::optional<float> shown() const {
    return grad().defined() ? std::optional(grad()[1].item<float>()) : std::nullopt;
  }
  float value() const {
    const auto param = param_of(model_);
    refresh({param});
    const Tensor value = param->value();
    EXPECT_TRUE(is_master_hidden_ || same_bits(model_, value.to(model_.scalar_type())));
    return value[1].item<float>();
  }

 private:
  LossScaler& scaler() { return scalers_[loss_]; }
  Tensor& grad() const { return model_.mutable_grad(); }
  /// As autograd does.
  static void add(const Tensor& param, float scaled) {
    const Tensor fresh = at::full_like(param, scaled);
    Tensor& grad = param.mutable_grad();
    grad.defined() ? grad.add_(fresh) : grad = fresh;
  }
  void step_fused() {
    if (!stepper_) {
      stepper_.emplace(StepAlgorithm::kSgd, std::vector{master_}, std::vector<int64_t>{0});
      stepper_->set_hyper({{/*lr=*/1.0}});
    }
    step_by(*state_, *stepper_, state_->overflows().found_inf());
  }

  at::NoGradGuard no_grad_;
  Way way_;
  Tensor model_, master_;
  LossScaler scalers_[2];
  int loss_ = 0;
  std::shared_ptr<OptimizerState> state_ = std::make_shared<OptimizerState>();
  std::optional<FusedStepper> stepper_;
  bool is_master_hidden_ = false;  ///< it was written without the model's knowledge
};

/// What a program must not do.
struct Refused {};

/// The same for one number.
class Rule {
 public:
  explicit Rule(const Way& way)
      : has_master_(way.has_master()),
        is_narrow_(way.kind == Kind::kFloat16),
        is_lazy_(way.has_master() && way.is_lazy()) {}

  void open() {
    const bool is_model_ahead = is_model_ahead_;
    look();
    is_model_ahead_ = is_model_ahead;  // until a step takes it over
    if (is_scaled() && scaled_by_ != scale()) unscale();
    check_not_written();
    is_checked_ = false;
    auto& seen = scaled_ ? scaled_ : sum_;
    if (is_narrow_ && is_bad_ && !is_assigned_ && seen) seen = 0;
  }
  void backward(float grad, const BackwardOptions& options, bool is_of_master = false) {
    open();
    shows_ = !is_of_master || scaled_;
    auto& scaled = is_of_master ? scaled_master_ : scaled_;
    scaled = scaled.value_or(0) + grad;
    scaled_by_ = scale();
    used_.reset();
    is_assigned_ = false;
    if (options.delay_unscale) return;
    is_checked_ = is_lazy_ && !sum_ && !scaled_master_;
    unscale();
  }
  void step() {
    if (is_none_) zero();
    if (is_scaled()) throw Refused();
    look();
    value_ = value();
    data_.reset();
    check_not_written();
    if (!is_bad_) value_ -= sum_.value_or(0);
    if (has_master_ || is_bad_) {
      if (sum_) was_checked_ = is_checked_;
      if (sum_) used_ = std::exchange(sum_, {});
      is_refused_ = is_bad_;
    }
    is_bad_ = is_checked_ = false;
  }
  void zero() {
    scaled_.reset();
    scaled_master_.reset();
    sum_.reset();
    used_.reset();
    shows_ = is_bad_ = is_checked_ = is_written_ = is_none_ = is_replaced_ = is_refused_ = false;
  }
  void zeros() {
    const bool shows = shows_ && !is_none_;
    zero();
    if (shows) sum_ = 0;
    shows_ = shows;
  }
  void set_none() {
    if (scaled_master_ && !scaled_) {
      shows_ = is_replaced_ = false;
    } else {
      is_none_ |= shows_;
    }
  }
  void assign(float value) {
    is_none_ = false;
    shows_ = is_assigned_ = true;
    if (is_scaled()) {
      is_replaced_ = true;
    } else if (is_checked_) {
      is_written_ = true;
    } else {
      sum_ = value;
      is_refused_ = false;
    }
  }
  void double_grad() {
    if (is_none_) return;
    is_written_ = is_checked_;
    if (!is_scaled() && !sum_ && !was_checked_) sum_ = std::exchange(used_, {});
    auto& seen = is_scaled() ? scaled_ : sum_;
    if (seen) seen = 2 * *seen;
  }
  void write_model(float value) {
    value_ = value;
    data_.reset();
    is_model_ahead_ = true;
    is_master_ahead_ = false;
  }
  void write_data(float value) {
    if (has_master_ && !is_model_ahead_) {
      data_ = value;
    } else {
      value_ = value;
    }
  }
  void write_master(float value) {
    if (is_model_ahead_) return;
    value_ = value;
    is_master_ahead_ = true;
  }
  void write_master_data(float value) {
    if (is_model_ahead_ || (data_ && !is_master_ahead_)) return;
    value_ = value;
  }
  void move_scale() { ++moves_[loss_]; }
  void change_loss() { loss_ = 1 - loss_; }

  bool shows() const { return shows_ && !is_none_; }
  /// The model's grad, where it is shown and unscaled.
  std::optional<float> shown() const {
    if (!shows() || is_scaled() || is_checked_ || (used_ && was_checked_)) return {};
    return sum_ ? sum_ : used_;
  }
  /// A counted write to the master alone has overwritten the model.
  float value() const { return is_master_ahead_ ? value_ : data_.value_or(value_); }

 private:
  using Scale = std::pair<int, int>;  ///< the loss, and how often its scale has moved
  Scale scale() const { return {loss_, moves_[loss_]}; }
  bool is_scaled() const { return scaled_ || scaled_master_; }
  void look() {
    if (is_master_ahead_) data_.reset();
    is_model_ahead_ = is_master_ahead_ = false;
    if (is_none_) zero();
    if (is_replaced_) throw Refused();
    if (is_refused_ && sum_ && std::isinf(*sum_)) throw Refused();
    if (is_refused_ && !has_master_) used_.reset();
    is_refused_ = false;
  }
  void check_not_written() const {
    if (is_checked_ && is_written_) throw Refused();
  }
  void unscale() {
    const float scaled = scaled_.value_or(0) + scaled_master_.value_or(0);
    is_bad_ |= std::isinf(scaled);
    sum_ = sum_.value_or(0) + scaled;
    scaled_.reset();
    scaled_master_.reset();
    shows_ = true;
  }

  bool has_master_, is_narrow_, is_lazy_;
  float value_ = kStart;
  std::optional<float> scaled_, scaled_master_, sum_;
  std::optional<float> used_;  ///< by a step, and still shown
  int loss_ = 0, moves_[2] = {};
  Scale scaled_by_;
  bool shows_ = false;            ///< the model's grad is not None
  bool is_bad_ = false;           ///< the next step is to be skipped
  bool is_checked_ = false;       ///< the sum is the model's grad, still scaled
  bool was_checked_ = false;      ///< so is what a step has used, which counts no more
  bool is_refused_ = false;       ///< the last step was skipped
  bool is_written_ = false;       ///< the program has written the checked grad,
  bool is_replaced_ = false;      ///< or put another in place of a scaled one,
  bool is_assigned_ = false;      ///< or of any since the last backward,
  bool is_none_ = false;          ///< or set the model's grad to None
  bool is_model_ahead_ = false;   ///< it has written the model
  bool is_master_ahead_ = false;  ///< it has written the master alone
  std::optional<float> data_;     ///< what the model holds by a write that PyTorch does not count
};

struct Event {
  std::string name;
  std::function<void(Run&, float)> on_run;
  std::function<void(Rule&, float)> on_rule;
  bool is_of_master = false;
};

Event backward(std::string name, bool delays, float factor = 1, bool is_of_master = false) {
  const BackwardOptions options{0, delays, false};
  return {std::move(name),
          [=](Run& run, float grad) { run.backward(grad * factor, options, is_of_master); },
          [=](Rule& rule, float grad) { rule.backward(grad * factor, options, is_of_master); },
          is_of_master};
}

const std::vector<Event>& events() {
  static const std::vector<Event> all = {
      backward("backward", false),
      backward("delayed", true),
      backward("overflow", false, INFINITY),
      backward("delayed overflow", true, INFINITY),
      backward("of master", false, 1, true),
      backward("delayed of master", true, 1, true),
      {"raising", [](Run& run, float grad) { run.backward(grad, {}, false, true); },
       [](Rule& rule, float) { rule.open(); }},
      {"zero", [](Run& run, float) { run.zero(true); }, [](Rule& rule, float) { rule.zero(); }},
      {"zeros", [](Run& run, float) { run.zero(false); }, [](Rule& rule, float) { rule.zeros(); }},
      {"none", [](Run& run, float) { run.set_none(); }, [](Rule& rule, float) { rule.set_none(); }},
      {"assign", &Run::assign, &Rule::assign},
      {"double", [](Run& run, float) { run.double_grad(); },
       [](Rule& rule, float) { rule.double_grad(); }},
      {"write model", [](Run& run, float grad) { run.write_model(4 + grad); },
       [](Rule& rule, float grad) { rule.write_model(4 + grad); }},
      {"write data", [](Run& run, float grad) { run.write_data(5 + grad); },
       [](Rule& rule, float grad) { rule.write_data(5 + grad); }},
      {"write master", [](Run& run, float grad) { run.write_master(3 + grad + 0x1p-20f); },
       [](Rule& rule, float grad) { rule.write_master(3 + grad + 0x1p-20f); }, true},
      {"write master data",
       [](Run& run, float grad) { run.write_master_data(6 + grad + 0x1p-20f); },
       [](Rule& rule, float grad) { rule.write_master_data(6 + grad + 0x1p-20f); }, true},
      {"move scale", [](Run& run, float) { run.move_scale(); },
       [](Rule& rule, float) { rule.move_scale(); }},
      {"change loss", [](Run& run, float) { run.change_loss(); },
       [](Rule& rule, float) { rule.change_loss(); }},
      {"step", [](Run& run, float) { run.step(); }, [](Rule& rule, float) { rule.step(); }},
  };
  return all;
}

template <class Error, class Call>
bool throws(const Call& call) {
  try {
    call();
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// A step ends the sequence.
void check(const Way& way, std::vector<const Event*> sequence) {
  Run run(way);
  Rule rule(way);
  sequence.push_back(&events().back());
  std::string so_far;
  float grad = 1.0f / 64;  // powers of two, so that sums identify their terms
  for (const Event* event : sequence) {
    so_far += " / " + event->name;
    ASSERT_EQ(throws<c10::Error>([&] { event->on_run(run, grad); }),
              throws<Refused>([&] { event->on_rule(rule, grad); }))
        << so_far;
    if (way.has_master()) {
      const auto shown = run.shown(), expected = rule.shown();
      ASSERT_EQ(shown.has_value(), rule.shows()) << so_far;
      ASSERT_TRUE(!expected || shown == expected) << so_far << ": " << *shown;
    }
    grad *= 2;
  }
  ASSERT_EQ(run.value(), rule.value()) << so_far;
}

class StatesTest : public ::testing::TestWithParam<Way> {
 protected:
  /// Checks each sequence that begins with this one, and has so many more events.
  void check_from(std::vector<const Event*>& sequence, int more) const {
    if (more == 0) return check(GetParam(), sequence);
    for (const Event& event : events()) {
      if (event.is_of_master && !GetParam().has_master()) continue;
      sequence.push_back(&event);
      check_from(sequence, more - 1);
      sequence.pop_back();
      if (HasFatalFailure()) return;
    }
  }
};

/// In `make soak` sequences have four events before their step.
TEST_P(StatesTest, FollowTheRuleThroughEverySequence) {
  const char* length = std::getenv("TORCHAMP_EVENTS");
  std::vector<const Event*> none;
  check_from(none, length == nullptr ? 3 : std::stoi(length));
}

std::string name_of(const ::testing::TestParamInfo<Way>& info) {
  const std::map<Kind, std::string> kinds{{Kind::kFloat16WithMaster, "Float16WithMaster"},
                                          {Kind::kFloat32, "Float32"},
                                          {Kind::kFloat16, "Float16"}};
  const std::map<Steps, std::string> steps{{Steps::kShown, "Shown"},
                                           {Steps::kLent, "Lent"},
                                           {Steps::kFused, "Fused"},
                                           {Steps::kLazy, "Lazy"}};
  return kinds.at(info.param.kind) + steps.at(info.param.steps);
}

INSTANTIATE_TEST_SUITE_P(Of, StatesTest,
                         ::testing::Values(Way{Kind::kFloat16WithMaster, Steps::kShown},
                                           Way{Kind::kFloat16WithMaster, Steps::kLent},
                                           Way{Kind::kFloat16WithMaster, Steps::kFused},
                                           Way{Kind::kFloat16WithMaster, Steps::kLazy},
                                           Way{Kind::kFloat32, Steps::kLent},
                                           Way{Kind::kFloat32, Steps::kFused},
                                           Way{Kind::kFloat16, Steps::kLent},
                                           Way{Kind::kFloat16, Steps::kFused}),
                         name_of);

// ---- the table of docs/grads.md

/// "| a | b |": {"a", "b"}.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, '|');) {
    const size_t begin = cell.find_first_not_of(' '), end = cell.find_last_not_of(' ');
    if (begin != std::string::npos) cells.push_back(cell.substr(begin, end + 1 - begin));
  }
  return cells;
}

/// Of its states, the next ones.
std::map<std::string, std::set<std::string>> documented_moves() {
  const auto room = std::filesystem::path(__FILE__).parent_path();
  std::ifstream file(room / "../../../docs/grads.md");
  std::map<std::string, std::set<std::string>> moves;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    const auto cells = cells_of(line);
    if (cells.empty() || line[0] != '|') {
      is_inside = false;
    } else if (is_inside && cells[0].find("--") == std::string::npos) {
      std::istringstream names(cells.back());
      for (std::string name; names >> name;) moves[cells[0]].insert(name.substr(0, name.find(',')));
    } else {
      is_inside |= cells.front() == "state" && cells.back() == "next state";
    }
  }
  return moves;
}

TEST(GradStateTest, MovesAreThoseOfTheDocumentation) {
  std::map<std::string, std::set<std::string>> moves;
  for (size_t i = 0; i < kGradStates; ++i) {
    const auto from = static_cast<GradState>(i);
    for (size_t j = 0; j < kGradStates; ++j) {
      const auto to = static_cast<GradState>(j);
      if (i != j && can_move(from, to)) moves[name_of(from)].insert(name_of(to));
    }
  }
  EXPECT_EQ(moves, documented_moves());
}

TEST(GradStateTest, OtherMovesAreRefused) {
  const Tensor model = tensor_of({1}, at::kHalf);
  Grad grad(model, model.to(at::kFloat));
  EXPECT_TRUE(contains(message_of([&] { grad.check(); }), "none to checked"));
  EXPECT_EQ(grad.state(), GradState::kNone);
}

}  // namespace
}  // namespace torchamp::core
