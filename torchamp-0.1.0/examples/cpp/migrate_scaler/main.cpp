// From a hand-written gradient scaler to torchamp: before.h and after.h are versions of one
// program, and this runs both from the same weights. The loss scale starts too high, as after a
// spike: "before" ends in NaN, "after" skips those steps and learns.
//
//     migrate_scaler --steps 200 --out after.csv
#include "after.h"
#include "arguments.h"
#include "before.h"

Net seeded_net(const Arguments& arguments) {
  torch::manual_seed(arguments.integer("--seed"));
  Net net;
  net->to(arguments.device());
  return net;
}

void run(const Arguments& arguments) {
  const Problem problem = make_problem(arguments.device());
  const int64_t steps = arguments.integer("--steps");
  const std::vector<Step> before = train_before(seeded_net(arguments), problem, steps);
  const std::vector<Step> after = train_after(seeded_net(arguments), problem, steps);

  Report report("migrate_scaler", steps, arguments.text("--out"));
  for (const Step& step : after) report.add(step);
  std::cout << "before_loss " << before.back().loss << "\nafter_loss " << after.back().loss
            << "\nskipped_steps " << report.skipped_steps() << '\n';
}

int main(int argc, char** argv) {
  return run_example([&] {
    run(Arguments(argc, argv,
                  {{"--steps", "200"}, {"--seed", "1"}, {"--device", "auto"}, {"--out", ""}}));
  });
}
