// What compare measured: its CSV, its tables, and the losses that should agree.
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "lab.h"
#include "sizes.h"
#include "statistics.h"
#include "tables.h"

struct Epoch {
  double loss = 0;  ///< the mean over the steps
  double test_accuracy = 0;
  std::array<double, 3> quartiles{};  ///< of the milliseconds of a step
  int64_t skipped_steps = 0;
};

/// An arm's training from one seed.
struct Run {
  std::string arm;
  int64_t repeat;
  std::vector<Epoch> epochs;
  std::vector<double> milliseconds;         ///< of all steps
  std::vector<double> bytes_per_parameter;  ///< in the order of kKinds
};

inline void write_csv(const std::vector<Run>& runs, const std::string& path) {
  Csv csv(path,
          "arm,repeat,epoch,loss,test_accuracy,ms_per_step,ms_first_quartile,ms_third_quartile,"
          "skipped_steps");
  for (const Run& run : runs) {
    for (size_t i = 0; i < run.epochs.size(); ++i) {
      const Epoch& epoch = run.epochs[i];
      csv.add(run.arm, run.repeat, i + 1, epoch.loss, epoch.test_accuracy, epoch.quartiles[1],
              epoch.quartiles[0], epoch.quartiles[2], epoch.skipped_steps);
    }
  }
}

inline std::vector<Run> runs_of(const std::vector<Run>& runs, const std::string& arm) {
  std::vector<Run> found;
  for (const Run& run : runs) {
    if (run.arm == arm) found.push_back(run);
  }
  return found;
}

/// A line per arm: means over the repeats, and the median step with its quartiles.
inline std::string table(const std::vector<Run>& runs, const std::vector<std::string>& arms,
                         torch::Device device) {
  Table table({"arm", "loss", "test accuracy", "ms per step" + on_cpu(device), "quartiles",
               "skipped steps"});
  for (const std::string& arm : arms) {
    std::vector<double> losses, accuracies, times;
    int64_t skipped_steps = 0;
    for (const Run& run : runs_of(runs, arm)) {
      losses.push_back(run.epochs.back().loss);
      accuracies.push_back(run.epochs.back().test_accuracy);
      times.insert(times.end(), run.milliseconds.begin(), run.milliseconds.end());
      for (const Epoch& epoch : run.epochs) skipped_steps += epoch.skipped_steps;
    }
    table.add({arm, fixed(mean(losses), 4), fixed(mean(accuracies), 4), fixed(median(times), 3),
               fixed(quantile(times, 0.25), 3) + "–" + fixed(quantile(times, 0.75), 3),
               std::to_string(skipped_steps)});
  }
  return table.text();
}

inline std::string bytes_table(const std::vector<Run>& runs, const std::vector<std::string>& arms) {
  Lines header{"bytes per parameter"};
  header.insert(header.end(), kKinds.begin(), kKinds.end());
  Table table(header);
  for (const std::string& arm : arms) {
    const Run first = runs_of(runs, arm).front();
    Lines row{arm};
    for (const double bytes : first.bytes_per_parameter) row.push_back(fixed(bytes, 2));
    table.add(row);
  }
  return table.text();
}

/// A sentence for each run of O1 whose loss differs from the GradScaler's in an epoch.
inline Lines disagreements(const std::vector<Run>& runs, double tolerance) {
  Lines found;
  const auto expected = runs_of(runs, "native"), got = runs_of(runs, "torchamp-O1");
  for (size_t i = 0; i < std::min(expected.size(), got.size()); ++i) {
    for (size_t epoch = 0; epoch < got[i].epochs.size(); ++epoch) {
      const double loss = got[i].epochs[epoch].loss, base = expected[i].epochs[epoch].loss;
      if (std::abs(loss - base) <= tolerance) continue;
      found.push_back("torchamp-O1: expected a loss within " + fixed(tolerance, 3) +
                      " of native's " + fixed(base, 4) + " in epoch " + std::to_string(epoch + 1) +
                      ", got " + fixed(loss, 4));
      break;
    }
  }
  return found;
}
