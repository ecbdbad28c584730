// What a program adds to a checkpoint.
#include "checkpoints.h"
#include "errors.h"

namespace torchamp {
namespace {

Training extra_training() {
  return {at::kCPU, quiet(OptLevel::O2)};
}

Extra saved_and_loaded(const Extra& extra) {
  const File file;
  Training run = extra_training();
  save(run.amped, file.path(), extra);
  return load(run.amped, file.path());
}

TEST(Extra, ComesBack) {
  c10::impl::GenericDict nested(c10::AnyType::get(), c10::AnyType::get());
  nested.insert(7, std::vector<int64_t>{1, 2});
  const Extra loaded = saved_and_loaded({{"epoch", 3},
                                         {"best", 0.5},
                                         {"on", true},
                                         {"name", "run"},
                                         {"none", c10::IValue()},
                                         {"large", int64_t{1} << 40},
                                         {"tensor", at::arange(3)},
                                         {"nested", nested}});
  EXPECT_EQ(loaded.size(), 8U);
  EXPECT_EQ(loaded.at("epoch").toInt(), 3);
  EXPECT_EQ(loaded.at("best").toDouble(), 0.5);
  EXPECT_TRUE(loaded.at("on").toBool());
  EXPECT_EQ(loaded.at("name").toStringRef(), "run");
  EXPECT_TRUE(loaded.at("none").isNone());
  EXPECT_EQ(loaded.at("large").toInt(), int64_t{1} << 40);
  EXPECT_TRUE(loaded.at("tensor").toTensor().equal(at::arange(3)));
  const auto list = loaded.at("nested").toGenericDict().at(7).toListRef();
  EXPECT_EQ(list.size(), 2U);
  EXPECT_EQ(list[1].toInt(), 2);
}

TEST(Extra, IsEmptyByDefault) {
  EXPECT_TRUE(saved_and_loaded({}).empty());
}

TEST(Extra, ComesBackFromAnArchive) {
  Training run = extra_training();
  torch::serialize::OutputArchive written;
  save(run.amped.model, run.amped.optimizer, written, {{"epoch", 3}});
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive read;
  read.load_from(stream);
  EXPECT_EQ(load(run.amped.model, run.amped.optimizer, read).at("epoch").toInt(), 3);
}

TEST(Extra, OtherValuesAreRefused) {
  const std::string other = " to be a tensor, a number, text or a container of these, got ";
  EXPECT_EQ(message_of([] {
              saved_and_loaded({{"device", at::Device(at::kCPU)}});
            }),
            "amp::save: expected extra.device" + other + "Device");
  EXPECT_EQ(message_of([] {
              saved_and_loaded({{"tensor", at::Tensor()}});
            }),
            "amp::save: expected extra.tensor" + other + "Tensor");
  c10::impl::GenericDict nested(c10::AnyType::get(), c10::AnyType::get());
  nested.insert(0.5, 1);
  EXPECT_EQ(message_of([&] {
              saved_and_loaded({{"nested", nested}});
            }),
            "amp::save: expected the keys of extra.nested to be text or integers, got Double");
}

}  // namespace
}  // namespace torchamp
