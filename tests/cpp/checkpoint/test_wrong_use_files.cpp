// Wrong uses of save and load, and of LibTorch's.
#include <torchamp/serialize.h>

#include <fstream>
#include <sstream>

#include "checkpoints.h"
#include "wrong_use_training.h"

namespace torchamp::wrong_use {
namespace {

/// Loads a file of these bytes.
void load_bytes(const std::string& bytes) {
  const File file;
  std::ofstream(file.path(), std::ios::binary) << bytes;
  load(Run().amped, file.path());
}

std::vector<WrongUse> of_files() {
  return {
      {"a_folder_for_a_file", [] { save(Run().amped, ::testing::TempDir()); },
       error(
           "^amp::save: expected \".*\" to be a path that can be written, got one that cannot be")},
      {"an_empty_path", [] { save(Run().amped, std::string()); },
       error("^amp::save: expected \"\" to be a path that can be written, got the error")},
      {"a_text_file", [] { load_bytes("weights"); },
       error("^amp::load: expected \".*\" to be a file that amp::save wrote")},
      {"a_file_of_two_models",
       [] {
         const File file;
         save(Two(at_level("O2")).amped, file.path());
         load(Run().amped, file.path());
       },
       error("^amp::load: expected a checkpoint of 1 (models|optimizers), got one of 2$")},
      {"torch_load_of_amps_file",
       [] {
         const File file;
         save(Run().amped, file.path());
         Linear net(4, 2);
         torch::load(net, file.path());
       },
       error("failed locating file constants.pkl")},
      {"torch_load_of_another_net",
       [] {
         std::stringstream file;
         torch::save(Net(), file);
         Run run;
         torch::load(run.amped.model, file);
       },
       error("No such serialized tensor 'weight'")},
  };
}

class WrongUseOfFilesTest : public ::testing::TestWithParam<WrongUse> {};

TEST_P(WrongUseOfFilesTest, GetsItsOutcome) {
  check(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Files, WrongUseOfFilesTest, ::testing::ValuesIn(of_files()), name_of);

}  // namespace
}  // namespace torchamp::wrong_use
