#include "data/batch_loader.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "data/data_error.h"
#include "data/text_dataset.h"
#include "data/token_source.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::data {
namespace {

constexpr int64_t kLength = 8;

// Each byte tells its offset modulo 251, in files of uneven sizes.
class BatchLoaderTest : public ::testing::Test {
 protected:
  BatchLoaderTest() {
    int64_t offset = 0;
    for (const int64_t size : {1, 700, 3, 8, 9, 1279, 2}) {
      std::string text;
      for (int64_t i = 0; i < size; ++i) {
        text += static_cast<char>(offset++ % 251);
      }
      folder_.write("file" + std::to_string(offset + 10'000), text);
    }
    num_tokens_ = offset;
  }

  BatchLoader loader(BatchShape shape) const {
    return {
        std::make_unique<TextDataset>(TextCorpus({folder_.path()}), order()),
        shape};
  }

  SampleOrder order() const { return {num_tokens_, kLength, /*seed=*/42}; }

  // All samples of a step, in the order of the global batch.
  at::Tensor global_batch(
      int64_t dp,
      int64_t micro,
      int64_t step,
      bool heldout = false) const {
    const int64_t global = 12;
    const at::Tensor all = at::full({global, 2 * kLength}, -1, at::kLong);
    for (int64_t rank = 0; rank < dp; ++rank) {
      BatchLoader part = loader(
          {.global_batch_size = global,
           .micro_batch_size = micro,
           .dp = dp,
           .dp_rank = rank});
      EXPECT_EQ(part.accumulation_steps(), global / dp / micro);
      for (int64_t a = 0; a < part.accumulation_steps(); ++a) {
        const Batch batch =
            heldout ? part.heldout(step, a) : part.train(step * global, a);
        const at::Tensor rows = all.narrow(0, batch.first_sample, micro);
        EXPECT_TRUE(rows.eq(-1).all().item<bool>()) << "taken twice";
        rows.copy_(at::cat({batch.input, batch.target}, 1));
      }
    }
    return all;
  }

  fixtures::TempFolder folder_;
  int64_t num_tokens_ = 0;
};

// The file was in order when it was opened; a device would end the process with
// an assertion of its own.
TEST(TokenBatches, ATokenOutsideOfTheVocabularyIsNamedBeforeItReachesADevice) {
  const fixtures::TempFolder folder;
  std::vector<uint16_t> tokens(200, 7);
  const auto bytes = [&] {
    return std::string_view(
        reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2);
  };
  const auto path = folder.write("tokens.bin", bytes());
  const int64_t size = std::ssize(tokens);
  BatchLoader loader(
      std::make_unique<TextDataset>(
          std::make_unique<FileTokens>(
              std::vector<std::string>{path},
              FileTokens::Options{
                  .format = TokenFormat::kRaw, .vocab_size = 900}),
          SampleOrder(size, kLength, /*seed=*/42)),
      {.global_batch_size = 1});
  const SampleOrder order(size, kLength, /*seed=*/42);
  const int64_t first = order.train_offset(3);
  loader.train(3, 0);
  tokens[static_cast<size_t>(first + 2)] = 920;
  // With the time that it had: a newer one would be what is noticed.
  const auto written = std::filesystem::last_write_time(path);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file << bytes();
  }
  std::filesystem::last_write_time(path, written);
  const auto message = fixtures::message_of<DataError>(
      [&] { loader.train(/*next_sample=*/3, 0); });
  EXPECT_NE(message.find(path), std::string::npos) << message;
  EXPECT_NE(
      message.find(
          "token 920 at index " + std::to_string(first + 2) +
          " of the file is outside the vocabulary of 900"),
      std::string::npos)
      << message;
  EXPECT_NE(
      message.find("in sample 3: tokens " + std::to_string(first) + " to "),
      std::string::npos)
      << message;
}

TEST_F(BatchLoaderTest, GivesTokensAndTheTokensOneFurther) {
  BatchLoader data = loader({.global_batch_size = 3, .micro_batch_size = 3});
  const Batch batch = data.train(/*next_sample=*/5 * 3, /*accumulation=*/0);
  ASSERT_EQ(batch.input.sizes(), (at::IntArrayRef{3, kLength}));
  ASSERT_EQ(batch.input.scalar_type(), at::kLong);
  for (int64_t row = 0; row < 3; ++row) {
    const int64_t begin = order().train_offset(5 * 3 + row);
    for (int64_t i = 0; i < kLength; ++i) {
      EXPECT_EQ(batch.input[row][i].item<int64_t>(), (begin + i) % 251);
      EXPECT_EQ(batch.target[row][i].item<int64_t>(), (begin + i + 1) % 251);
    }
  }
}

TEST_F(BatchLoaderTest, TheGlobalBatchIsTheSameOnEveryMesh) {
  for (const bool heldout : {false, true}) {
    for (const int64_t step : {0, 1, 40}) {
      const at::Tensor whole = global_batch(1, 12, step, heldout);
      EXPECT_FALSE(whole.eq(-1).any().item<bool>());
      for (const auto& [dp, micro] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 4},
               {1, 1},
               {2, 6},
               {2, 3},
               {2, 1},
               {3, 4},
               {3, 2},
               {4, 3},
               {4, 1}}) {
        EXPECT_TRUE(at::equal(global_batch(dp, micro, step, heldout), whole))
            << dp << " x " << micro;
      }
    }
  }
}

TEST_F(BatchLoaderTest, StepsFollowOneAnother) {
  const int64_t samples = order().num_train_samples();
  std::set<int64_t> seen;
  BatchLoader data = loader({});
  for (int64_t step = 0; step < samples; ++step) {
    const Batch batch = data.train(step, 0);
    const int64_t begin = order().train_offset(step);
    EXPECT_EQ(batch.input[0][0].item<int64_t>(), begin % 251);
    seen.insert(begin);
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), samples);
}

TEST_F(BatchLoaderTest, HeldOutBatchesAreNoMoreThanThereAre) {
  // 2002 tokens: 20 held out, two samples of 8.
  ASSERT_EQ(num_tokens_, 2002);
  BatchLoader one = loader({.global_batch_size = 1});
  EXPECT_EQ(one.num_heldout_batches(8), 2);
  EXPECT_EQ(one.num_heldout_batches(1), 1);
  EXPECT_EQ(one.num_heldout_batches(0), 0);
  const Batch first = one.heldout(0, 0);
  EXPECT_EQ(first.input[0][0].item<int64_t>(), 1982 % 251);
  BatchLoader many = loader({.global_batch_size = 12, .micro_batch_size = 12});
  EXPECT_EQ(many.num_heldout_batches(8), 1);
}

TEST_F(BatchLoaderTest, RefusesShapesThatDoNotDivide) {
  EXPECT_THROW(
      loader({.global_batch_size = 12, .micro_batch_size = 5}),
      c10::ValueError);
  EXPECT_THROW(
      loader({.global_batch_size = 2, .dp = 2, .dp_rank = 2}), c10::ValueError);
  EXPECT_THROW(loader({.micro_batch_size = 0}), c10::ValueError);
}

TEST_F(BatchLoaderTest, OpensWhatARecipeNames) {
  config::Recipe recipe = train::parse_recipe(
      fixtures::kMinRecipe,
      "r.yaml",
      std::vector<std::string>{
          "data.paths=['" + folder_.path() + "']", "data.sequence_length=8"});
  train::validate(recipe, 2);
  BatchLoader data = BatchLoader::open(recipe, /*dp_rank=*/1);
  EXPECT_EQ(data.data().describe(), "0.0 MB of text");
  EXPECT_EQ(data.data().num_train_samples(), (num_tokens_ - 20 - 1) / 8);
  const Batch batch = data.train(0, 0);
  EXPECT_EQ(batch.input.size(0), 8);
  EXPECT_EQ(batch.first_sample, 8);
  recipe.data.sequence_length = 2000;
  EXPECT_EQ(
      fixtures::message_of<mesh::UsageError>(
          [&] { BatchLoader::open(recipe, 0); }),
      "override data.sequence_length=8: data.sequence_length: a sequence "
      "length of 2000 is too long for data of 2002 tokens. One training and "
      "one validation sample need 4002");
  recipe.data.paths = {"/nonexistent"};
  const std::string message = fixtures::message_of<mesh::UsageError>(
      [&] { BatchLoader::open(recipe, 0); });
  EXPECT_TRUE(message.starts_with("override data.paths=['")) << message;
  EXPECT_NE(
      message.find(": data.paths[0]: \"/nonexistent\": No such"),
      std::string::npos)
      << message;
}

TEST_F(BatchLoaderTest, OpensDigits) {
  std::string rows;
  for (int row = 0; row < 20; ++row) {
    for (int pixel = 0; pixel < 64; ++pixel) {
      rows += std::to_string(row % 17) + ",";
    }
    rows += std::to_string(row % 10) + "\n";
  }
  const fixtures::TempFolder folder;
  config::Recipe recipe = train::parse_recipe(
      "model: {type: mlp, layers: 1, ffn_dim: 8}\n"
      "data: {type: digits, paths: [" +
          folder.write("digits.csv", rows) + "]}\n",
      "r.yaml",
      std::vector<std::string>{"train.global_batch_size=4"});
  train::validate(recipe, 2);
  BatchLoader data = BatchLoader::open(recipe, /*dp_rank=*/1);
  EXPECT_EQ(data.data().num_train_samples(), 18);
  EXPECT_EQ(data.num_heldout_batches(8), 1) << "two samples, repeated";
  const Batch batch = data.heldout(0, 0);
  EXPECT_EQ(batch.first_sample, 2);
  EXPECT_EQ(batch.input.sizes(), (at::IntArrayRef{2, 1, 8, 8}));
  EXPECT_EQ(batch.target[0].item<int64_t>(), 18 % 10);
  EXPECT_EQ(batch.target[1].item<int64_t>(), 19 % 10);
  EXPECT_FLOAT_EQ(batch.input[1][0][7][7].item<float>(), 2.0F / 16);
}

} // namespace
} // namespace weft::data
