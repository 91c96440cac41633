#include "checkpoint/compare.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/files/error.h"
#include "checkpoint/format/manifest.h"
#include "mesh/error/error.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/temp_folder.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Compare : public ::testing::Test {
 protected:
  fs::path
  save(const test::Tensors& tensors, test::Grid grid = {}, int64_t step = 20) {
    test::SampleOptions options;
    options.grid = grid;
    options.step = step;
    options.state = state_;
    return test::write_sample(
        scratch_.path() / std::to_string(count_++), tensors, options);
  }

  test::TempFolder scratch_;
  std::string state_ = R"({"seed": 1, "rng": {"a": [1, 2]}})";
  int count_ = 0;
};

TEST_F(Compare, AnyTwoGridsOfEqualTensorsAreEqual) {
  const auto tensors = test::sample_tensors(9);
  const auto one = save(tensors);
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 2}, {3, 1}, {1, 4}}) {
    const auto result = compare(one, save(tensors, {rows, columns}));
    EXPECT_TRUE(result.differences.empty());
    EXPECT_EQ(result.tensors, static_cast<int64_t>(tensors.size()));
  }
}

TEST_F(Compare, ValuesAreCountedMeasuredAndPlaced) {
  auto a = at::arange(30, at::kFloat).view({5, 6});
  auto b = a.clone();
  b[1][4] += 0.5;
  b[3][0] -= 2;
  b[4][5] += 1;
  const auto result =
      compare(save({{"w", a}}, {2, 3}), save({{"w", b}}, {3, 1}));
  ASSERT_EQ(result.differences.size(), 1);
  const auto& difference = result.differences[0];
  EXPECT_EQ(difference.name, "w");
  EXPECT_EQ(difference.elements, 3);
  EXPECT_EQ(difference.max_abs, 2);
  EXPECT_THAT(difference.first, ElementsAre(1, 4));
  EXPECT_THAT(difference.what, HasSubstr("3 of 30"));
}

TEST_F(Compare, ReportsTheFirstDifferenceForAnyChunks) {
  auto a = at::zeros({4, 4}, at::kInt);
  auto b = a.clone();
  b[3][0] = 1; // in the first column's chunk
  b[2][3] = 1; // in the second's, but before it
  for (const test::Grid grid : {test::Grid{1, 2}, {2, 1}, {4, 4}}) {
    const auto result = compare(save({{"w", a}}, grid), save({{"w", b}}));
    ASSERT_EQ(result.differences.size(), 1);
    EXPECT_THAT(result.differences[0].first, ElementsAre(2, 3));
  }
}

TEST_F(Compare, BitsCountNotValues) {
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  const auto a = at::tensor({0.0F, nan, 1.0F, nan});
  const auto b = at::tensor({-0.0F, nan, nan, nan});
  const auto result = compare(save({{"w", a}}), save({{"w", b}}));
  ASSERT_EQ(result.differences.size(), 1);
  EXPECT_EQ(result.differences[0].elements, 2);
  EXPECT_TRUE(std::isinf(result.differences[0].max_abs));
  EXPECT_TRUE(compare(save({{"w", a}}), save({{"w", a}})).differences.empty());
}

TEST_F(Compare, EveryDtypeIsMeasured) {
  for (const auto dtype :
       {at::kBool,
        at::kByte,
        at::kChar,
        at::kShort,
        at::kUInt16,
        at::kUInt32,
        at::kUInt64,
        at::kInt,
        at::kLong,
        at::kHalf,
        at::kBFloat16,
        at::kDouble,
        at::kComplexFloat,
        at::kFloat8_e4m3fn,
        at::kFloat8_e5m2,
        at::kFloat8_e4m3fnuz,
        at::kFloat8_e5m2fnuz,
        at::kFloat8_e8m0fnu}) {
    SCOPED_TRACE(c10::toString(dtype));
    const auto a = at::ones({3}, at::kFloat).to(dtype);
    const auto b =
        at::tensor({1.0F, dtype == at::kBool ? 0.0F : 2.0F, 1.0F}).to(dtype);
    const auto result = compare(save({{"w", a}}), save({{"w", b}}));
    ASSERT_EQ(result.differences.size(), 1);
    EXPECT_EQ(result.differences[0].elements, 1);
    EXPECT_EQ(result.differences[0].max_abs, 1);
    EXPECT_THAT(result.differences[0].first, ElementsAre(1));
  }
}

TEST_F(Compare, NamesShapesDtypesAndSteps) {
  const auto w = at::ones({2, 3});
  const auto result = compare(
      save({{"a", w}, {"b", w}, {"c", w}, {"d", at::ones({})}}),
      save(
          {{"b", w.view({3, 2})},
           {"c", w.to(at::kHalf)},
           {"d", at::ones({})},
           {"e", w}},
          {},
          21));
  std::vector<std::string> texts;
  for (const auto& difference : result.differences) {
    texts.push_back(difference.name + ": " + difference.what);
  }
  EXPECT_THAT(
      texts,
      ElementsAre(
          "a: only in A",
          "b: float32 [2, 3] vs float32 [3, 2]",
          "c: float32 [2, 3] vs float16 [2, 3]",
          "e: only in B",
          "step: 20 vs 21"));
}

TEST_F(Compare, StateIsComparedMemberByMember) {
  const auto a = save({});
  state_ = R"({"rng": {"a": [1, 3], "b": null}, "seed": 1.0})";
  const auto result = compare(a, save({}));
  std::vector<std::string> texts;
  for (const auto& difference : result.differences) {
    texts.push_back(difference.name + ": " + difference.what);
  }
  EXPECT_THAT(
      texts,
      ElementsAre(
          "state.rng.a[1]: 2 vs 3",
          "state.rng.b: only in B",
          "state.seed: 1 vs 1.0"));
  state_ = R"({"rng":{"a":[1,2]},"seed":1})"; // spaces and order
  EXPECT_TRUE(compare(a, save({})).differences.empty());
}

TEST_F(Compare, LargeTensorsGoInBlocks) {
  const auto a = at::arange(3 << 20, at::kLong).view({3, 1024, 1024});
  auto b = a.clone();
  b[2][1023][1023] = 0;
  const auto result =
      compare(save({{"w", a}}, {2, 2}), save({{"w", b}}, {1, 3}));
  ASSERT_EQ(result.differences.size(), 1);
  EXPECT_EQ(result.differences[0].elements, 1);
  EXPECT_THAT(result.differences[0].first, ElementsAre(2, 1023, 1023));
  EXPECT_EQ(result.bytes, 24 << 20);
}

TEST_F(Compare, DamageAndMissingPathsAreNotDifferences) {
  const auto a = save({{"w", at::ones({100})}});
  const auto b = save({{"w", at::ones({100})}});
  const auto file = b / "shard-00000-00000.safetensors";
  auto bytes = test::read_file(file);
  bytes.back() ^= 1;
  test::write_file(file, bytes);
  EXPECT_THROW(compare(a, b), CheckpointError);
  EXPECT_THROW(compare(b, a), CheckpointError);
  EXPECT_THROW(compare(a, scratch_.path() / "none"), mesh::UsageError);
}

} // namespace
} // namespace weft::checkpoint
