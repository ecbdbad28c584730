// Wrong uses of save and load, and of LibTorch's.
#include <torch/optim/lbfgs.h>
#include <torchamp/serialize.h>

#include <fstream>
#include <sstream>

#include "checkpoints.h"
#include "wrong_use_training.h"

namespace torchamp::wrong_use {
namespace {

using torch::optim::Adam;

/// Loads into a run at `options` what another one saved.
void load_from(const Options& saved, const Options& options) {
  const File file;
  save(Run(saved).amped, file.path());
  load(Run(options).amped, file.path());
}

/// Loads a file of these bytes.
void load_bytes(const std::string& bytes) {
  const File file;
  std::ofstream(file.path(), std::ios::binary) << bytes;
  load(Run().amped, file.path());
}

std::string saved_bytes() {
  const File file;
  save(Run().amped, file.path());
  std::ifstream stream(file.path(), std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<WrongUse> of_files() {
  return {
      {"a_folder_that_is_missing", [] { save(Run().amped, "/missing/run.pt"); },
       error(
           "^amp::save: expected \"/missing/run.pt\" to be a path that can be written, got the e")},
      {"a_folder_for_a_file", [] { save(Run().amped, ::testing::TempDir()); },
       error(
           "^amp::save: expected \".*\" to be a path that can be written, got one that cannot be")},
      {"an_empty_path", [] { save(Run().amped, std::string()); },
       error("^amp::save: expected \"\" to be a path that can be written, got the error")},
      {"an_optimizer_that_no_file_holds",
       [] { save(Run<torch::optim::LBFGS>(Options("O0")).amped, File().path()); },
       error("^amp::save: expected .* to be LibTorch's SGD, .*, got an unsupported class$")},
      {"a_missing_file", [] { load(Run().amped, "/missing/run.pt"); },
       error("^amp::load: expected \"/missing/run.pt\" to be a file that amp::save wrote, got one "
             "t")},
      {"an_empty_file", [] { load_bytes(""); },
       error("^amp::load: expected \".*\" to be a file that amp::save wrote")},
      {"a_text_file", [] { load_bytes("weights"); },
       error("^amp::load: expected \".*\" to be a file that amp::save wrote")},
      {"half_a_file", [] { load_bytes(saved_bytes().substr(0, 500)); },
       error("^amp::load: expected \".*\" to be a file that amp::save wrote")},
      {"a_file_of_a_net",
       [] {
         const File file;
         torch::save(Linear(4, 2), file.path());
         load(Run().amped, file.path());
       },
       error("^amp::load: expected \".*\" to be a file that amp::save wrote, got one that cannot "
             "be read")},
      {"a_file_of_O5_at_O2", [] { load_from(at_level("O5"), at_level("O2")); },
       error("^amp::load: expected a checkpoint of opt_level O2, got one of O5; initialize at O5")},
      {"a_file_of_two_losses", [] { load_from(at_level("O2").num_losses(2), at_level("O2")); },
       error("^amp::load: expected a checkpoint of 1 losses, got one of 2$")},
      {"a_file_of_two_models",
       [] {
         const File file;
         save(Two(at_level("O2")).amped, file.path());
         load(Run().amped, file.path());
       },
       error("^amp::load: expected a checkpoint of 1 (models|optimizers), got one of 2$")},
      {"a_file_of_another_optimizer",
       [] {
         const File file;
         save(Run<Adam>().amped, file.path());
         load(Run<SGD>().amped, file.path());
       },
       error(
           R"(^amp::load: expected optimizers\[0\] of the checkpoint to be of kind SGD, got Adam)")},
      {"a_file_of_another_model",
       [] {
         const File file;
         Linear net(5, 2);
         SGD sgd(net->parameters(), 0.1);
         save(initialize(net, sgd, at_level("O2")), file.path());
         load(Run().amped, file.path());
       },
       error(R"(^amp::load: expected models\[0\] of the checkpoint to have the names, sizes and)")},
      {"an_archive_of_something_else",
       [] {
         torch::serialize::OutputArchive written;
         written.write("weight", at::ones({2}));
         std::stringstream stream;
         written.save_to(stream);
         torch::serialize::InputArchive archive;
         archive.load_from(stream);
         load(Run().amped, archive);
       },
       error("^amp::load: expected the archive to contain \"torchamp\", but it is missing")},
      {"torch_load_of_amps_file",
       [] {
         const File file;
         save(Run().amped, file.path());
         Linear net(4, 2);
         torch::load(net, file.path());
       },
       error("failed locating file constants.pkl")},
      {"torch_load_into_the_net",
       [] {
         std::stringstream file;
         torch::save(Linear(4, 2), file);
         Run run;
         torch::load(run.net, file);
         run.loss();
       },
       error(
           "to hold Half as initialize left it, got Float.*torch::load into the model that init")},
      {"torch_load_of_other_sizes",
       [] {
         std::stringstream file;
         torch::save(Linear(5, 2), file);
         Run run;
         torch::load(run.amped.model, file);
       },
       error("^torch::load: expected \"weight\" of the file to have the model's sizes, ")},
      {"torch_load_of_another_net",
       [] {
         std::stringstream file;
         torch::save(Net(), file);
         Run run;
         torch::load(run.amped.model, file);
       },
       error("No such serialized tensor 'weight'")},
      {"torch_save_of_the_net",
       [] {
         std::stringstream file;
         Run run;
         torch::save(run.net, file);
         Linear net(4, 2);
         torch::load(net, file);
         EXPECT_TRUE(same_bits(net->weight.detach(), run.optimizer().master_params()[0].detach()));
       },
       right()},
  };
}

class WrongUseOfFilesTest : public ::testing::TestWithParam<WrongUse> {};

TEST_P(WrongUseOfFilesTest, GetsItsOutcome) {
  check(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Files, WrongUseOfFilesTest, ::testing::ValuesIn(of_files()), name_of);

}  // namespace
}  // namespace torchamp::wrong_use
