// What vgg_sweep measured: its CSV, its table, and the losses that should agree.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lab.h"
#include "statistics.h"
#include "tables.h"

constexpr size_t kEnoughEpochs = 10;  // to compare accuracies
constexpr double kAccuracyTolerance = 0.01;

struct Epoch {
  double seconds, images_per_second, first_loss, loss, train_accuracy, test_accuracy;
  int64_t skipped_steps;
};

/// The epochs of a level at a batch size. first_loss: of the run's first step.
struct Run {
  std::string level;
  int64_t batch, repeat;
  std::vector<Epoch> epochs;
  double peak_mib;
};

/// As users know it.
inline std::string method(const std::string& level) {
  return level == "O0" ? "fp32" : level == "O3" ? "fp16" : "amp";
}

inline void write_csv(const std::vector<Run>& runs, const std::string& path) {
  Csv csv(path,
          "method,level,batch,repeat,epoch,seconds,images_per_second,peak_mib,first_loss,loss,"
          "train_accuracy,test_accuracy,skipped_steps");
  for (const Run& run : runs) {
    for (size_t i = 0; i < run.epochs.size(); ++i) {
      const Epoch& epoch = run.epochs[i];
      csv.add(method(run.level), run.level, run.batch, run.repeat, i + 1, epoch.seconds,
              epoch.images_per_second, run.peak_mib, epoch.first_loss, epoch.loss,
              epoch.train_accuracy, epoch.test_accuracy, epoch.skipped_steps);
    }
  }
}

/// The run of the first level at that batch and repeat.
inline const Run& base_of(const std::vector<Run>& runs, const Run& run) {
  for (const Run& other : runs) {
    if (other.level == runs[0].level && other.batch == run.batch && other.repeat == run.repeat) {
      return other;
    }
  }
  return run;
}

inline double typical_seconds(const Run& run) {
  std::vector<double> seconds;
  for (const Epoch& epoch : run.epochs) seconds.push_back(epoch.seconds);
  return median(seconds);
}

/// Of the epochs.
inline double best_accuracy(const Run& run) {
  double best = 0;
  for (const Epoch& epoch : run.epochs) best = std::max(best, epoch.test_accuracy);
  return best;
}

/// A line a run; time and memory also relative to the first level's.
inline std::string table(const std::vector<Run>& runs, torch::Device device) {
  Table table({"level", "batch", "s an epoch" + on_cpu(device), "× " + runs[0].level, "images/s",
               "MiB", "× " + runs[0].level, "first loss", "best test accuracy", "skipped steps"});
  for (const Run& run : runs) {
    const Run& base = base_of(runs, run);
    const Epoch& last = run.epochs.back();
    int64_t skipped_steps = 0;
    for (const Epoch& epoch : run.epochs) skipped_steps += epoch.skipped_steps;
    table.add({run.level, std::to_string(run.batch), fixed(typical_seconds(run), 3),
               fixed(typical_seconds(run) / typical_seconds(base), 2),
               fixed(last.images_per_second, 0), fixed(run.peak_mib, 2),
               fixed(run.peak_mib / base.peak_mib, 2), fixed(last.first_loss, 4),
               fixed(best_accuracy(run), 3), std::to_string(skipped_steps)});
  }
  return table.text();
}

/// A sentence for each first loss that differs from the first level's, and where the epochs are
/// enough to compare them for each accuracy.
inline Lines problems(const std::vector<Run>& runs, double tolerance) {
  Lines found;
  for (const Run& run : runs) {
    const double expected = base_of(runs, run).epochs[0].first_loss;
    const double loss = run.epochs[0].first_loss;
    if (std::abs(loss - expected) <= tolerance * expected) continue;
    found.push_back(run.level + ", batch " + std::to_string(run.batch) +
                    ": expected a first loss within " + fixed(100 * tolerance, 0) + "% of " +
                    runs[0].level + "'s " + fixed(expected, 4) + ", got " + fixed(loss, 4));
  }
  for (const Run& run : runs) {
    const double expected = best_accuracy(base_of(runs, run)), accuracy = best_accuracy(run);
    if (run.epochs.size() < kEnoughEpochs) continue;
    if (std::abs(accuracy - expected) <= kAccuracyTolerance) continue;
    found.push_back(run.level + ", batch " + std::to_string(run.batch) +
                    ": expected a test accuracy within " + fixed(kAccuracyTolerance, 2) + " of " +
                    runs[0].level + "'s " + fixed(expected, 4) + ", got " + fixed(accuracy, 4));
  }
  return found;
}
