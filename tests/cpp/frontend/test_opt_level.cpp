#include <gtest/gtest.h>
#include <torchamp/opt_level.h>

#include <vector>

#include "errors.h"

namespace torchamp {
namespace {

constexpr OptLevel kLevels[] = {OptLevel::O0, OptLevel::O1, OptLevel::O2,
                                OptLevel::O3, OptLevel::O4, OptLevel::O5};

struct Row {
  std::optional<c10::ScalarType> cast_model_type, autocast_type;
  std::optional<bool> keep_batchnorm_fp32, master_weights;
  std::optional<double> loss_scale;  ///< empty: dynamic
};

/// apex's table, level by level.
const Row kRows[] = {
    {c10::kFloat, {}, {}, false, 1.0}, {{}, c10::kHalf, {}, {}, {}},
    {c10::kHalf, {}, true, true, {}},  {c10::kHalf, {}, false, false, 1.0},
    {{}, c10::kBFloat16, {}, {}, 1.0}, {c10::kBFloat16, {}, true, true, 1.0},
};

void expect_row(const Properties& got, const Row& expected) {
  EXPECT_EQ(got.cast_model_type, expected.cast_model_type);
  EXPECT_EQ(got.autocast_type, expected.autocast_type);
  EXPECT_EQ(got.keep_batchnorm_fp32, expected.keep_batchnorm_fp32);
  EXPECT_EQ(got.master_weights, expected.master_weights);
  EXPECT_EQ(got.loss_scale.fixed, expected.loss_scale);
}

TEST(OptLevel, EachHasItsRow) {
  for (const OptLevel level : kLevels) {
    SCOPED_TRACE(name(level));
    expect_row(default_properties(level), kRows[static_cast<int>(level)]);
    expect_row(Options(level).resolve(), kRows[static_cast<int>(level)]);
    EXPECT_EQ(default_properties(level).opt_level, level);
  }
}

TEST(OptLevel, NamesAreReadBack) {
  for (const OptLevel level : kLevels) EXPECT_EQ(parse_opt_level(name(level)), level);
  EXPECT_EQ(Options("O5").resolve().opt_level, OptLevel::O5);
}

TEST(OptLevel, OtherNamesAreRefusedAndANearMissIsNamed) {
  const std::string expected =
      "initialize: expected opt_level to be one of \"O0\", \"O1\", \"O2\", \"O3\", \"O4\", "
      "\"O5\", got ";
  const auto error_of = [](const char* text) {
    return message_of([text] { parse_opt_level(text); });
  };
  EXPECT_EQ(error_of("01"), expected + "\"01\"; did you mean \"O1\" (letter O, digit)?");
  EXPECT_EQ(error_of("o2"), expected + "\"o2\"; did you mean \"O2\" (letter O, digit)?");
  for (const char* text : {"", "O6", "O", "O11", "09", "32"}) {
    EXPECT_EQ(error_of(text), expected + "\"" + text + "\"");
  }
  for (const char* text : {"bf16", "bf16-mixed", "bf16-true", "torch.bfloat16"}) {
    EXPECT_EQ(error_of(text), expected + "\"" + text +
                                  "\"; did you mean \"O4\" (ops in bfloat16) or \"O5\" (a "
                                  "bfloat16 model)?");
  }
  for (const char* text : {"16", "16-mixed", "fp16", "half", "torch.float16"}) {
    EXPECT_EQ(error_of(text), expected + "\"" + text +
                                  "\"; did you mean \"O1\" (ops in float16) or \"O2\" (a float16 "
                                  "model)?");
  }
}

TEST(Options, OverridesChangeTheirPropertyOnly) {
  Row row = kRows[2];
  row.keep_batchnorm_fp32 = false;
  expect_row(Options(OptLevel::O2).keep_batchnorm_fp32(false).resolve(), row);
  expect_row(Options(OptLevel::O2).keep_batchnorm_fp32("False").resolve(), row);
  row = kRows[2];
  row.master_weights = false;
  expect_row(Options(OptLevel::O2).master_weights(false).resolve(), row);
  row = kRows[2];
  row.loss_scale = 128.0;
  expect_row(Options(OptLevel::O2).loss_scale(128.0).resolve(), row);
  expect_row(Options(OptLevel::O2).loss_scale("128.0").resolve(), row);
  row = kRows[3];
  row.cast_model_type = c10::kBFloat16;
  expect_row(Options(OptLevel::O3).cast_model_type(c10::kBFloat16).resolve(), row);
  row = kRows[3];
  row.cast_model_type.reset();
  expect_row(Options(OptLevel::O3).dont_cast_model().resolve(), row);
  row = kRows[1];
  row.autocast_type.reset();
  expect_row(Options(OptLevel::O1).autocast(false).resolve(), row);
}

TEST(Options, HaveEveryNameOfPythons) {
  expect_row(Options().opt_level("O2").resolve(), kRows[2]);
  expect_row(Options("O1").opt_level(OptLevel::O5).resolve(), kRows[5]);
  Row row = kRows[1];
  row.autocast_type.reset();
  expect_row(Options("O1").patch_torch_functions(false).resolve(), row);
  EXPECT_EQ(message_of([] { Options().opt_level("02"); }),
            "initialize: expected opt_level to be one of \"O0\", \"O1\", \"O2\", \"O3\", \"O4\", "
            "\"O5\", got \"02\"; did you mean \"O2\" (letter O, digit)?");
}

TEST(Options, SpeedOfLightKeepsBatchNorm) {
  Row row = kRows[3];
  row.keep_batchnorm_fp32 = true;
  row.loss_scale.reset();
  expect_row(Options(OptLevel::O3).keep_batchnorm_fp32("True").loss_scale("dynamic").resolve(),
             row);
}

TEST(Options, AutocastLevelsRefuseWhatConcernsTheModelsType) {
  for (const OptLevel level : {OptLevel::O1, OptLevel::O4}) {
    const std::string at = std::string(" cannot be set at opt_level ") + name(level) + ": ";
    EXPECT_EQ(message_of([&] { Options(level).cast_model_type(c10::kHalf).resolve(); }),
              "initialize: cast_model_type" + at +
                  "its weights stay in float32 and autocast chooses the type of each op");
    EXPECT_EQ(
        message_of([&] { Options(level).keep_batchnorm_fp32(true).resolve(); }),
        "initialize: keep_batchnorm_fp32" + at + "batch norm is always float32 at this level");
    EXPECT_EQ(message_of([&] { Options(level).master_weights(false).resolve(); }),
              "initialize: master_weights" + at + "the model's own weights are float32 already");
    EXPECT_EQ(message_of([&] { Options(level).cast_model_type(c10::kFloat).resolve(); }),
              "no error");
    EXPECT_EQ(message_of([&] { Options(level).dont_cast_model().resolve(); }), "no error");
  }
}

TEST(Options, OtherLevelsRefuseAutocast) {
  for (const OptLevel level : {OptLevel::O0, OptLevel::O2, OptLevel::O3, OptLevel::O5}) {
    EXPECT_EQ(message_of([&] { Options(level).autocast(true).resolve(); }),
              std::string("initialize: patch_torch_functions cannot be set at opt_level ") +
                  name(level) + ": only O1 and O4 cast op by op");
    EXPECT_EQ(message_of([&] { Options(level).autocast(false).resolve(); }), "no error");
  }
}

TEST(Options, ValuesThatMakeNoSenseAreRefused) {
  Options options;
  EXPECT_EQ(message_of<c10::ValueError>([&] { options.loss_scale(""); }),
            "initialize: expected loss_scale to be \"dynamic\" or a number, got \"\"");
  EXPECT_EQ(message_of<c10::ValueError>([&] { options.loss_scale(0.0); }),
            "initialize: expected loss_scale to be positive and finite, got 0");
  EXPECT_EQ(message_of<c10::ValueError>([&] { options.keep_batchnorm_fp32("yes"); }),
            "initialize: expected keep_batchnorm_fp32 to be a boolean, \"True\" or \"False\", got "
            "\"yes\"");
  EXPECT_EQ(message_of<c10::ValueError>([&] { options.keep_batchnorm_fp32("true"); }),
            "initialize: expected keep_batchnorm_fp32 to be a boolean, \"True\" or \"False\", got "
            "\"true\"");
  EXPECT_EQ(message_of<c10::TypeError>([&] { options.cast_model_outputs(c10::kLong); }),
            "initialize: expected cast_model_outputs to be a floating dtype, got Long");
  expect_row(options.resolve(), kRows[1]);
}

/// As std::getenv returns for a variable that is not set.
TEST(Options, RefuseNullText) {
  const char* const unset = nullptr;
  const std::string rest =
      " to be text, got a null pointer, which std::getenv returns for a variable that is not set";
  EXPECT_EQ(message_of<c10::ValueError>([&] { Options{unset}; }),
            "initialize: expected opt_level" + rest);
  EXPECT_EQ(message_of<c10::ValueError>([&] { Options().opt_level(unset); }),
            "initialize: expected opt_level" + rest);
  EXPECT_EQ(message_of<c10::ValueError>([&] { Options().loss_scale(unset); }),
            "initialize: expected loss_scale" + rest);
  EXPECT_EQ(message_of<c10::ValueError>([&] { Options().keep_batchnorm_fp32(unset); }),
            "initialize: expected keep_batchnorm_fp32" + rest);
}

TEST(Options, KeepsWhatIsNoPropertyOfALevel) {
  const Options options = Options(OptLevel::O2)
                              .enabled(false)
                              .cast_model_outputs(c10::kHalf)
                              .num_losses(3)
                              .min_loss_scale(2)
                              .max_loss_scale(1024)
                              .adopt_data_writes(true)
                              .verbosity(0);
  EXPECT_FALSE(options.enabled());
  EXPECT_EQ(options.cast_model_outputs(), c10::kHalf);
  EXPECT_EQ(options.num_losses(), 3);
  EXPECT_EQ(options.min_loss_scale(), 2);
  EXPECT_EQ(options.max_loss_scale(), 1024);
  EXPECT_EQ(options.verbosity(), 0);
  EXPECT_TRUE(options.adopt_data_writes());
}

TEST(OptionsTest, GettersGiveWhatWasSet) {
  const Options given = Options("O2").loss_scale(128).keep_batchnorm_fp32(false).keep_fp32("head");
  EXPECT_EQ(given.opt_level(), OptLevel::O2);
  EXPECT_EQ(given.loss_scale()->fixed, 128.0);
  EXPECT_EQ(given.keep_batchnorm_fp32(), false);
  EXPECT_EQ(given.keep_fp32(), std::vector<std::string>{"head"});
  EXPECT_EQ(given.master_weights(), std::nullopt);
  EXPECT_EQ(given.autocast(), std::nullopt);
  EXPECT_EQ(given.cast_model_type(), std::nullopt);
  EXPECT_EQ(Options("O2").dont_cast_model().cast_model_type().value(), std::nullopt);
}

}  // namespace
}  // namespace torchamp
