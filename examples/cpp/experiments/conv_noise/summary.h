// What conv_noise measured: tables, and whether mixed precision pays.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "lab.h"
#include "sizes.h"
#include "statistics.h"
#include "tables.h"

struct Epoch {
  double loss;  ///< the mean over the epoch's batches
  double seconds;
  int64_t skipped_steps;
};

/// The epochs of all trainings of a level, and the memory of one.
struct Run {
  std::string level;
  std::vector<Epoch> epochs;
  Sizes sizes;
  double used_mib;

  /// The median over the epochs: the first is slower where kernels are compiled.
  double typical_seconds() const {
    std::vector<double> seconds;
    for (const Epoch& epoch : epochs) seconds.push_back(epoch.seconds);
    return median(seconds);
  }
};

inline void write_csv(const std::vector<Run>& runs, const std::string& path) {
  Csv csv(path, "level,epoch,loss,seconds,skipped_steps");
  for (const Run& run : runs) {
    for (size_t i = 0; i < run.epochs.size(); ++i) {
      const auto& [loss, seconds, skipped_steps] = run.epochs[i];
      csv.add(run.level, i + 1, loss, seconds, skipped_steps);
    }
  }
}

/// Time, memory and loss of each level, the first two also relative to the first run's.
inline std::string table(const std::vector<Run>& runs, torch::Device device) {
  Table table({"level", "s an epoch" + on_cpu(device), "× float32", "MiB", "× float32",
               "first loss", "last loss", "skipped steps"});
  for (const Run& run : runs) {
    int64_t skipped = 0;
    for (const Epoch& epoch : run.epochs) skipped += epoch.skipped_steps;
    table.add({run.level, fixed(run.typical_seconds(), 3),
               fixed(run.typical_seconds() / runs[0].typical_seconds(), 2), fixed(run.used_mib, 2),
               fixed(run.used_mib / runs[0].used_mib, 2), fixed(run.epochs.front().loss, 4),
               fixed(run.epochs.back().loss, 4), std::to_string(skipped)});
  }
  return table.text();
}

/// What the memory of each level holds.
inline std::string bytes_table(const std::vector<Run>& runs) {
  Lines header{"MiB"};
  header.insert(header.end(), kKinds.begin(), kKinds.end());
  Table table(header);
  for (const Run& run : runs) {
    Lines row{run.level};
    for (const int64_t size : run.sizes) row.push_back(fixed(static_cast<double>(size) / kMib, 2));
    table.add(row);
  }
  return table.text();
}

/// Why 16 bits may gain little on this device.
inline std::string reason(torch::Device device, const std::string& level) {
  if (!device.is_cpu())
    return "layers of this size do not fill this GPU, or it has no tensor cores";
  return level == "O1" || level == "O2"
             ? "torch has no fast backward of float16 convolutions for CPUs"
             : "bfloat16 gains only with avx512_bf16 or AMX, where products outweigh casts";
}

/// Whether mixed precision pays here, in a sentence. A GPU must gain what tensor cores allow; a CPU
/// must gain anything.
inline std::string verdict(const Run& run, const Run& base, torch::Device device) {
  const double time = run.typical_seconds() / base.typical_seconds();
  const double memory = run.used_mib / base.used_mib;
  const std::string text = run.level + " takes " + fixed(memory, 2) + " × the memory and " +
                           fixed(time, 2) + " × the time of float32. ";
  if (time > (device.is_cpu() ? 1.0 : 0.7)) {
    return text + "Mixed precision does not pay here: " + reason(device, run.level) + '.';
  }
  if (memory > (device.is_cpu() ? 1.0 : 0.6)) {
    return text + "It saves time but little memory: activations are not most of it.";
  }
  return text + "Mixed precision pays here.";
}

/// A sentence for each level whose loss after one epoch differs from the first run's.
inline Lines disagreements(const std::vector<Run>& runs, double tolerance) {
  Lines found;
  const double expected = runs[0].epochs[0].loss;
  for (const Run& run : runs) {
    const double loss = run.epochs[0].loss;
    if (std::abs(loss - expected) <= tolerance * expected) continue;
    found.push_back(run.level + ": expected a loss within " + fixed(100 * tolerance, 0) + "% of " +
                    runs[0].level + "'s " + fixed(expected, 4) + " after one epoch, got " +
                    fixed(loss, 4));
  }
  return found;
}
