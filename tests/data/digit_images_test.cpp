#include "data/digit_images.h"

#include <zlib.h>

#include <numeric>
#include <set>

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/text_corpus.h"
#include "tests/config/fixtures.h"

namespace weft::data {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

// Image i has i % 17 in pixel i % 64 and 16 in the last, and shows i % 10.
std::string digit_row(int64_t i) {
  std::string row;
  for (int64_t pixel = 0; pixel < 64; ++pixel) {
    const int64_t ink = pixel == 63 ? 16 : pixel == i % 64 ? i % 17 : 0;
    row += std::to_string(ink) + ",";
  }
  return row + std::to_string(i % 10) + "\n";
}

std::string digit_rows(int64_t begin, int64_t end) {
  std::string text;
  for (int64_t i = begin; i < end; ++i) {
    text += digit_row(i);
  }
  return text;
}

void write_gzip(const std::string& path, const std::string& text) {
  const gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(
      gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
      static_cast<int>(text.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

std::vector<int64_t> counted(int64_t begin, int64_t count) {
  std::vector<int64_t> samples(static_cast<size_t>(count));
  std::iota(samples.begin(), samples.end(), begin);
  return samples;
}

class DigitImagesTest : public ::testing::Test {
 protected:
  DigitImagesTest() {
    write_gzip(folder_ / "digits.csv.gz", digit_rows(0, 57));
  }

  DigitImages open(uint64_t seed = 42) const {
    return DigitImages({folder_ / "digits.csv.gz"}, seed);
  }

  std::string refusal_of(const std::string& text) const {
    const std::string path = folder_.write("bad.csv", text);
    return fixtures::message_of<mesh::UsageError>(
        [&] { DigitImages({path}, 1); });
  }

  fixtures::TempFolder folder_;
};

TEST_F(DigitImagesTest, HoldsOutTheLastTenth) {
  DigitImages data = open();
  EXPECT_EQ(data.num_train_samples(), 52);
  EXPECT_EQ(data.num_heldout_samples(), 5);
  EXPECT_EQ(data.describe(), "57 images of digits");
  const Batch batch = data.heldout(counted(3, 3));
  EXPECT_EQ(batch.input.sizes(), (at::IntArrayRef{3, 1, 8, 8}));
  EXPECT_EQ(batch.input.scalar_type(), at::kFloat);
  EXPECT_EQ(batch.target.scalar_type(), at::kLong);
  const int64_t rows[] = {55, 56, 52}; // the fourth, fifth and first again
  for (int64_t i = 0; i < 3; ++i) {
    auto expected = at::zeros({64});
    expected[rows[i] % 64] = static_cast<float>(rows[i] % 17) / 16;
    expected[63] = 1;
    EXPECT_TRUE(at::equal(batch.input[i].flatten(), expected)) << rows[i];
    EXPECT_EQ(batch.target[i].item<int64_t>(), rows[i] % 10);
  }
}

// Image 63 sets the last pixel twice; there are fewer.
std::vector<int64_t> rows_of(const Batch& batch) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < batch.target.numel(); ++i) {
    const auto pixels = batch.input[i].flatten().narrow(0, 0, 63);
    // Images 0, 17, 34, 51 have no ink there: told apart by nothing but order.
    rows.push_back(
        pixels.sum().item<float>() == 0 ? -1 : pixels.argmax().item<int64_t>());
  }
  return rows;
}

TEST_F(DigitImagesTest, EachEpochTakesAllInAnOrderOfItsOwn) {
  DigitImages data = open();
  const auto first = rows_of(data.train(counted(0, 52)));
  const auto second = rows_of(data.train(counted(52, 52)));
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 52 - 4 + 1);
  EXPECT_TRUE(std::is_permutation(first.begin(), first.end(), second.begin()));
  EXPECT_NE(first, second);
  EXPECT_EQ(rows_of(open().train(counted(0, 52))), first);
  EXPECT_NE(rows_of(open(/*seed=*/43).train(counted(0, 52))), first);
  EXPECT_EQ(
      rows_of(data.train(counted(30, 4))),
      std::vector<int64_t>(first.begin() + 30, first.begin() + 34));
}

TEST_F(DigitImagesTest, ReadsPlainTextAndSeveralFiles) {
  const std::string a = folder_.write("plain/a.csv", digit_rows(0, 30));
  folder_.write("plain/b.csv", digit_rows(30, 57));
  DigitImages two({folder_ / "plain"}, 42);
  const Batch here = two.train(counted(0, 20));
  const Batch there = open().train(counted(0, 20));
  EXPECT_TRUE(at::equal(here.input, there.input));
  EXPECT_TRUE(at::equal(here.target, there.target));
  EXPECT_NE(two.fingerprint_text(), open().fingerprint_text());
  EXPECT_EQ(open(1).fingerprint_text(), open(2).fingerprint_text());
  std::string dos = digit_rows(0, 3);
  dos.insert(dos.size() - 1, "\r");
  dos.pop_back();
  EXPECT_EQ(
      DigitImages({folder_.write("dos.csv", dos)}, 1).describe(),
      "3 images of digits")
      << "no newline at the end";
}

TEST_F(DigitImagesTest, RefusesRowsThatAreNoImages) {
  const std::string expected =
      "expected 64 pixels from 0 to 16 and a digit, separated by commas";
  const std::string good = digit_row(5);
  const std::string cases[] = {
      "5" + good.substr(1, 0) + "x" + good.substr(1),
      "17" + good.substr(1),
      "-1" + good.substr(1),
      good.substr(2),
      "0," + good,
      good.substr(0, good.size() - 1) + ",\n",
      good.substr(0, good.size() - 2) + "10\n",
      "0.5" + good.substr(1),
      "\n,\n"};
  for (const std::string& bad : cases) {
    const std::string message = refusal_of(good + bad + good);
    EXPECT_THAT(message, HasSubstr("bad.csv\", line ")) << bad;
    EXPECT_THAT(message, EndsWith(expected)) << bad;
  }
  EXPECT_THAT(refusal_of(good + cases[1]), HasSubstr("line 2: "));
}

TEST_F(DigitImagesTest, RefusesFilesThatAreNotThereOrBroken) {
  EXPECT_EQ(
      fixtures::message_of<mesh::UsageError>([] {
        DigitImages({"/nonexistent.csv.gz"}, 1, "r.yaml: data.paths");
      }),
      "r.yaml: data.paths[0]: \"/nonexistent.csv.gz\": No such file or "
      "directory. Run `make digits` to write the images of scikit-learn to "
      ".cache/digits.csv.gz");
  EXPECT_THAT(
      refusal_of(digit_row(1)),
      EndsWith("1 images, expected at least one for training and one for "
               "validation"));
  const std::string whole = fixtures::read_text(folder_ / "digits.csv.gz");
  EXPECT_THAT(
      refusal_of(whole.substr(0, whole.size() / 2)), HasSubstr("bad.csv\""));
  std::string damaged = whole;
  damaged[damaged.size() / 2] = static_cast<char>(~damaged[damaged.size() / 2]);
  EXPECT_THAT(refusal_of(damaged), HasSubstr("bad.csv\""));
}

// `make digits` brings it.
TEST(DigitImagesFile, HasTheImagesOfScikitLearn) {
  const std::string path = WEFT_SOURCE_DIR "/.cache/digits.csv.gz";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is not there: make digits";
  }
  DigitImages data({path}, 42);
  EXPECT_EQ(data.num_train_samples(), 1797 - 179);
  EXPECT_EQ(data.num_heldout_samples(), 179);
  const Batch last = data.heldout(counted(178, 1));
  EXPECT_EQ(last.target.item<int64_t>(), 8);
  // 0, 0, 10, 14, 8, 1, 0, 0 begins the last row.
  EXPECT_FLOAT_EQ(last.input[0][0][0][2].item<float>(), 10.0F / 16);
}

} // namespace
} // namespace weft::data
