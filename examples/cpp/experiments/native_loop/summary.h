// What native_loop found: its CSV, its table, and what is not as expected.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "sizes.h"
#include "tables.h"

/// A line of native_loop.csv.
struct Row {
  std::string style;
  int64_t threads;
  std::string inside, output;  ///< the dtypes of the outputs of the first layer and of the model
  double first_loss, last_loss;
  int64_t skipped_steps;
  Sizes sizes;
};

/// Inside the model. autocast, entered in this thread, does not reach the others.
inline std::string expected_dtype(const Row& row) {
  const bool stays = row.style == "fp32" || (row.style != "torchamp" && row.threads > 0);
  return stays ? "float32" : "float16";
}

/// A sentence for each dtype that is not the expected one, and for each loss that differs.
inline Lines problems(const std::vector<Row>& rows, double tolerance) {
  Lines found;
  const double loss = rows[0].last_loss;
  for (const Row& row : rows) {
    if (row.inside != expected_dtype(row)) {
      found.push_back(row.style + ": expected " + expected_dtype(row) + " inside the model, got " +
                      row.inside);
    }
    if (std::abs(row.last_loss - loss) <= tolerance * loss) continue;
    found.push_back(row.style + ": expected a last loss within " + fixed(100 * tolerance, 0) +
                    "% of " + rows[0].style + "'s " + fixed(loss, 4) + ", got " +
                    fixed(row.last_loss, 4));
  }
  return found;
}

inline std::string table(const std::vector<Row>& rows) {
  Table table({"style", "inside", "output", "first loss", "last loss", "skipped steps",
               "activations MiB", "total MiB"});
  for (const Row& row : rows) {
    table.add({row.style, row.inside, row.output, fixed(row.first_loss, 4), fixed(row.last_loss, 4),
               std::to_string(row.skipped_steps),
               fixed(static_cast<double>(row.sizes.back()) / kMib, 3),
               fixed(total(row.sizes) / kMib, 3)});
  }
  return table.text();
}

inline void write_csv(const std::vector<Row>& rows, const std::string& path) {
  Csv csv(path,
          "style,threads,inside,output,first_loss,last_loss,skipped_steps,"
          "weights,grads,masters,state,activations");
  for (const Row& row : rows) {
    const auto& [weights, grads, masters, state, activations] = row.sizes;
    csv.add(row.style, row.threads, row.inside, row.output, row.first_loss, row.last_loss,
            row.skipped_steps, weights, grads, masters, state, activations);
  }
}

inline std::string where(int64_t threads) {
  return threads == 0 ? "in this thread" : "in " + std::to_string(threads) + " other threads";
}
