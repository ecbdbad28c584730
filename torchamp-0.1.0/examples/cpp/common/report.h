// The output of a run: one CSV line per step, and a progress bar.
#pragma once

#include <torch/types.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

struct Step {
  int64_t index;
  float loss;
  double loss_scale;  ///< the scale of this step's loss
  bool skipped;
};

/// A CSV of steps; none if the path is empty.
class StepLog {
 public:
  explicit StepLog(const std::string& path) : enabled_(!path.empty()) {
    if (!enabled_) return;
    file_.open(path);
    TORCH_CHECK(file_, "expected --out to name a writable file, got ", path);
    file_.precision(9);
    file_ << "step,loss,loss_scale,skipped\n";
  }

  void write(const Step& step) {
    if (!enabled_) return;
    file_ << step.index << ',' << step.loss << ',' << step.loss_scale << ',' << step.skipped
          << '\n';
  }

 private:
  bool enabled_;
  std::ofstream file_;
};

/// A progress bar on stderr if that is a terminal; cleared at the end.
class ProgressBar {
 public:
  ProgressBar(std::string title, int64_t total) : title_(std::move(title)), total_(total) {}

  void show(const Step& step) const {
    if (!isatty(STDERR_FILENO)) return;
    const int64_t done = step.index + 1;
    const std::string bar(static_cast<size_t>(kWidth * done / total_), '#');
    std::fprintf(stderr, "\r%s [%-*s] %ld/%ld  loss %.4f  loss scale %-9.0f", title_.c_str(),
                 kWidth, bar.c_str(), static_cast<long>(done), static_cast<long>(total_), step.loss,
                 step.loss_scale);
    if (done == total_) std::fputs("\r\033[K", stderr);
  }

 private:
  static constexpr int kWidth = 30;
  std::string title_;
  int64_t total_;
};

/// Logs, shows and counts the steps of a run.
class Report {
 public:
  Report(std::string title, int64_t steps, const std::string& csv)
      : log_(csv), bar_(std::move(title), steps) {}

  void add(const Step& step) {
    log_.write(step);
    bar_.show(step);
    skipped_steps_ += step.skipped;
  }

  int64_t skipped_steps() const { return skipped_steps_; }

 private:
  StepLog log_;
  ProgressBar bar_;
  int64_t skipped_steps_ = 0;
};
