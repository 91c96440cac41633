// Token files that a model is measured on.

#include <array>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "data/data_error.h"
#include "data/find_files.h"
#include "inference/eval_samples.h"
#include "tests/config/fixtures.h"
#include "train/setup/load_recipe.h"

namespace weft::inference {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

config::Recipe measured_recipe() {
  return train::parse_recipe(
      "model: {dim: 64, layers: 2, heads: 4, ffn_dim: 128}\n"
      "data: {paths: [text.txt], sequence_length: 4}\n",
      "test.yaml");
}

// `count` tokens, all 7 but for one.
std::string sevens_but(size_t count, size_t place, uint16_t other) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    const uint16_t token = i == place ? other : 7;
    bytes += static_cast<char>(token & 0xff);
    bytes += static_cast<char>(token >> 8);
  }
  return bytes;
}

// The note beside a file says that no token is large: it is not scanned.
TEST(EvalSamples, EveryTokenIsLookedAtWhenItIsRead) {
  const fixtures::TempFolder folder;
  const auto path = folder.write("a.bin", sevens_but(14, 6, 300));
  const auto found = data::find_files({{path}}, "test");
  nlohmann::json origin{
      {"tokenizer", "bytes"},
      {"fingerprint", "0"},
      {"vocab_size", 256},
      {"dtype", "uint16"},
      {"tokens", 14},
      {"modified_ns", found.at(0).modified_ns}};
  folder.write("a.bin.json", origin.dump());
  const auto samples = token_windows(measured_recipe(), path);
  ASSERT_EQ(samples.count, 3);
  const std::array<int64_t, 2> sound{0, 2};
  const auto batch = samples.read(sound);
  EXPECT_EQ(batch.input.max().item<int64_t>(), 7);
  const std::array<int64_t, 1> bad{1};
  EXPECT_THAT(
      fixtures::message_of<data::DataError>([&] { samples.read(bad); }),
      AllOf(
          HasSubstr("offset 12"),
          HasSubstr("token 300"),
          HasSubstr("vocabulary of 256")));
}

TEST(EvalSamples, FilesOfOtherSizesAreTold) {
  const fixtures::TempFolder folder;
  const auto told = [&](size_t count) {
    const auto path = folder.write("a.bin", sevens_but(count, 0, 7));
    return token_windows(measured_recipe(), path).fingerprint;
  };
  EXPECT_EQ(told(14), told(14));
  EXPECT_NE(told(14), told(15)); // as many windows
  EXPECT_NE(told(14), told(18));
}

} // namespace
} // namespace weft::inference
