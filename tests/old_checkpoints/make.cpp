// make <folder>: writes the checkpoints of C++. make.py builds and runs it.
#include <old_run.h>

namespace {

using namespace torchamp::old_run;

void write(const std::string& level, const std::string& name, const std::string& path) {
  Run further(level, name, 0.125);
  further.train_from_the_start();
  further.train(kSteps, kSteps + kFurtherSteps);
  torchamp::save(further.amped, path);
  const Tensor after = model_in(contents(path));
  Run run(level, name, 0.125);
  run.train_from_the_start();
  torchamp::save(run.amped, path, {{"after", after}});
}

}  // namespace

int main(int, char** argv) {
  for (const std::string level : {"O2", "O5"}) {
    for (const auto& [name, maker] : makers()) {
      write(level, name, std::string(argv[1]) + "/" + level + "_" + name + ".pt");
    }
  }
}
