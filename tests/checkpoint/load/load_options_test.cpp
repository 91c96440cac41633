// What load() is asked to leave, rename and convert.

#include "checkpoint/load/load.h"
#include "checkpoint/load/newest.h"
#include "checkpoint/save/save.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "base/dotted_pattern.h"
#include "checkpoint/files/error.h"
#include "checkpoint/load/convert.h"
#include "checkpoint/save/saver.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using dtensor::StateDict;
using test::message_of_thrown;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

at::Tensor counted(at::IntArrayRef sizes, double start = 1) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat)
      .add_(start)
      .view(sizes);
}

class LoadWith : public ::testing::Test {
 protected:
  fs::path save_one(const StateDicts& dicts, int64_t step = 1) {
    return save(scratch_.path(), dicts, {.step = step, .fsync = false});
  }

  test::TempFolder scratch_;
};

TEST(KeyPatterns, MatchPartByPart) {
  for (const auto& [pattern, key] :
       std::vector<std::pair<std::string, std::string>>{
           {"model.a", "model.a"},
           {"model.*.weight", "model.0.weight"},
           {"model.layer?.*", "model.layer3.bias"},
           {"model.**", "model.a"},
           {"model.**", "model.a.b.c"},
           {"**", "x"},
           {"**.bias", "model.a.b.bias"},
           {"**.bias", "bias"},
           {"**.a.**.w", "m.a.a.w"},
           {"model.*attn*.w", "model.self_attn_2.w"}}) {
    EXPECT_TRUE(base::matches_dotted(pattern, key)) << pattern << " " << key;
  }
  for (const auto& [pattern, key] :
       std::vector<std::pair<std::string, std::string>>{
           {"model.*", "model.a.b"},
           {"model", "model.a"},
           {"model.a", "model"},
           {"*.a", "x.y.a"},
           {"**.bias", "a.bias.x"},
           {"model.?", "model.ab"},
           {"", "a"}}) {
    EXPECT_FALSE(base::matches_dotted(pattern, key)) << pattern << " " << key;
  }
}

TEST_F(LoadWith, AllThatDoesNotFitIsListedAtOnce) {
  const auto folder = save_one(
      {{"model",
        {{"a", at::ones({2})}, {"b", at::ones({3})}, {"n", at::ones({4})}}},
       {"other", {{"x", at::ones({1})}}}});
  const StateDicts dicts{
      {"model",
       {{"a", at::zeros({4})},
        {"c", at::zeros({3})},
        {"d", at::zeros({3})},
        {"n", at::zeros({4}, at::kLong)}}}};
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { load(folder, dicts); }),
      AllOf(
          HasSubstr("step-1 does not match"),
          HasSubstr("2 tensors are missing: \"model.c\", \"model.d\""),
          HasSubstr("1 tensor is unexpected: \"model.b\""),
          HasSubstr("2 tensors have another shape or dtype"),
          HasSubstr("\"model.a\" [2] float32 in the checkpoint vs [4] float32"),
          HasSubstr("\"model.n\" [4] float32 in the checkpoint vs [4] int64"),
          Not(HasSubstr("other.x"))));
  EXPECT_TRUE(at::equal(dicts.at("model").at("a"), at::zeros({4})));
}

TEST_F(LoadWith, LongListsAreCutButCounted) {
  StateDict saved;
  for (int i = 0; i < 20; ++i) {
    saved["t" + std::to_string(i)] = at::ones({1});
  }
  const auto folder = save_one({{"model", saved}});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        load(folder, {{"model", {{"t0", at::zeros({1})}}}});
      }),
      AllOf(
          HasSubstr("19 tensors are unexpected"),
          HasSubstr("and 14 more"),
          Not(HasSubstr("t9"))));
}

TEST_F(LoadWith, StrictnessSaysWhichSideMayHaveMore) {
  const auto folder =
      save_one({{"model", {{"a", at::ones({2})}, {"b", at::ones({3})}}}});
  struct Case {
    Strictness strictness;
    bool more_in_state;
    bool more_in_checkpoint;
    bool loads;
  };
  for (const auto& [strictness, more_in_state, more_in_checkpoint, loads] :
       {Case{Strictness::kExact, true, false, false},
        Case{Strictness::kExact, false, true, false},
        Case{Strictness::kExact, false, false, true},
        Case{Strictness::kAllowUnexpected, false, true, true},
        Case{Strictness::kAllowUnexpected, true, true, false},
        Case{Strictness::kAllowMissing, true, false, true},
        Case{Strictness::kAllowMissing, true, true, false},
        Case{Strictness::kAllowBoth, true, true, true}}) {
    StateDict model{{"a", at::zeros({2})}};
    if (more_in_state) {
      model["c"] = at::full({1}, 7.0F);
    }
    if (!more_in_checkpoint) {
      model["b"] = at::zeros({3});
    }
    const auto attempt = [&, strictness = strictness] {
      return load(folder, {{"model", model}}, {.strictness = strictness});
    };
    SCOPED_TRACE(static_cast<int>(strictness));
    if (!loads) {
      EXPECT_THROW(attempt(), c10::ValueError);
      EXPECT_TRUE(at::equal(model["a"], at::zeros({2})));
      continue;
    }
    const auto stats = attempt();
    EXPECT_EQ(stats.loaded.front(), "model.a");
    EXPECT_EQ(stats.loaded.size(), more_in_checkpoint ? 1U : 2U);
    EXPECT_EQ(stats.missing.size(), more_in_state ? 1U : 0U);
    EXPECT_EQ(stats.unexpected.size(), more_in_checkpoint ? 1U : 0U);
    EXPECT_TRUE(at::equal(model["a"], at::ones({2})));
    if (more_in_state) {
      EXPECT_THAT(stats.missing, ElementsAre("model.c"));
      EXPECT_TRUE(at::equal(model["c"], at::full({1}, 7.0F)));
    }
    if (more_in_checkpoint) {
      EXPECT_THAT(stats.unexpected, ElementsAre("model.b"));
    }
  }
}

TEST_F(LoadWith, IncludeAndExcludeLeaveTheRestAlone) {
  const auto folder = save_one(
      {{"model",
        {{"layers.0.weight", at::ones({2})},
         {"layers.0.bias", at::ones({2})},
         {"layers.1.weight", at::ones({2})},
         {"head.weight", at::ones({2})}}}});
  StateDict model;
  for (const auto* name :
       {"layers.0.weight", "layers.0.bias", "layers.1.weight", "extra"}) {
    model[name] = at::zeros({2});
  }
  const auto stats = load(
      folder,
      {{"model", model}},
      {.include = {"model.layers.**"}, .exclude = {"**.bias"}});
  EXPECT_THAT(
      stats.loaded,
      ElementsAre("model.layers.0.weight", "model.layers.1.weight"));
  EXPECT_THAT(stats.missing, IsEmpty());
  EXPECT_THAT(stats.unexpected, IsEmpty());
  for (const auto& [name, tensor] : model) {
    const bool expected = name.ends_with("weight");
    EXPECT_EQ(tensor.sum().item<float>(), expected ? 2 : 0) << name;
  }
  for (const bool is_include : {true, false}) {
    LoadOptions options;
    (is_include ? options.include : options.exclude) = {"model.*"};
    options.include.emplace_back("model.layers.**");
    const auto message = message_of_thrown<c10::ValueError>([&] {
      options.exclude.emplace_back("model.layer.0.weight");
      load(folder, {{"model", model}}, options);
    });
    EXPECT_THAT(
        message,
        AllOf(
            HasSubstr("\"model.layer.0.weight\" of exclude matches no tensor"),
            HasSubstr("`*` does not match a dot")));
  }
}

TEST_F(LoadWith, RenamedTensorsFindTheirPlace) {
  const auto folder = save_one(
      {{"model",
        {{"module.blocks.0.w", counted({3})},
         {"module.blocks.1.w", counted({3}, 10)},
         {"scale", counted({1}, 5)}}}});
  const auto first = at::zeros({3});
  const auto second = at::zeros({3});
  const auto scale = at::zeros({1});
  const auto stats = load(
      folder,
      {{"net",
        {{"layers.0.weight", first},
         {"layers.1.weight", second},
         {"scale", scale}}}},
      {.rename = {
           {R"(\bmodule\.)", ""},
           {R"(blocks\.(\d+)\.w$)", "layers.$1.weight"},
           {"^model", "net"}}});
  EXPECT_EQ(stats.loaded.size(), 3U);
  EXPECT_TRUE(at::equal(first, counted({3})));
  EXPECT_TRUE(at::equal(second, counted({3}, 10)));
  EXPECT_TRUE(at::equal(scale, counted({1}, 5)));

  const auto attempt = [&](const std::vector<RenameRule>& rules) {
    return message_of_thrown<c10::ValueError>([&] {
      load(folder, {{"net", {{"w", first}}}}, {.rename = rules});
    });
  };
  EXPECT_THAT(
      attempt({{R"(^.*blocks\.\d\.)", "net."}}),
      AllOf(
          HasSubstr("\"model.module.blocks.0.w\""),
          HasSubstr("\"model.module.blocks.1.w\""),
          HasSubstr("both renamed to \"net.w\"")));
  EXPECT_THAT(
      attempt({{"(", ""}}), HasSubstr("\"(\" is not a regular expression"));
  EXPECT_THAT(attempt({{".*", ""}}), HasSubstr("leaves an empty name for"));
}

TEST_F(LoadWith, DtypesAreConvertedWhereValuesFit) {
  const auto folder = save_one(
      {{"model",
        {{"w", counted({4}, 0.1)},
         {"step", at::full({}, 12, at::kLong)},
         {"float_step", at::full({}, 12.0F)},
         {"flags", at::tensor({0, 1, 1}, at::kInt)},
         {"big", at::full({2}, 1e30)},
         {"half", at::full({2}, 0.5F)},
         {"wide", at::full({2}, 300, at::kLong)},
         {"negative", at::full({2}, -1, at::kInt)},
         {"complex", at::ones({1}, at::kComplexFloat)}}}});
  const auto load_as = [&](const std::string& name, const at::Tensor& into) {
    load(
        folder,
        {{"model", {{name, into}}}},
        {.strictness = Strictness::kAllowUnexpected, .convert_dtype = true});
    return into;
  };
  for (const auto dtype :
       {at::kHalf, at::kBFloat16, at::kDouble, at::kFloat8_e4m3fn}) {
    EXPECT_TRUE(at::equal(
        load_as("w", at::zeros({4}, dtype)).to(at::kDouble),
        counted({4}, 0.1).to(dtype).to(at::kDouble)))
        << dtype;
  }
  EXPECT_EQ(load_as("step", at::zeros({})).item<float>(), 12);
  EXPECT_EQ(load_as("float_step", at::zeros({}, at::kLong)).item<int>(), 12);
  EXPECT_TRUE(at::equal(
      load_as("flags", at::zeros({3}, at::kBool)),
      at::tensor({0, 1, 1}, at::kInt).to(at::kBool)));
  EXPECT_EQ(load_as("wide", at::zeros({2}, at::kShort)).sum().item<int>(), 600);

  const auto refused = [&](const std::string& name, at::ScalarType dtype) {
    const auto into = at::zeros({2}, dtype);
    const auto message =
        message_of_thrown<c10::ValueError>([&] { load_as(name, into); });
    EXPECT_EQ(into.to(at::kDouble).sum().item<double>(), 0) << name;
    return message;
  };
  EXPECT_THAT(
      refused("big", at::kHalf),
      AllOf(
          HasSubstr("\"model.big\" holds 1e+30 as float32"),
          HasSubstr("too large for float16")));
  EXPECT_THAT(refused("half", at::kInt), HasSubstr("0.5 as float32"));
  EXPECT_THAT(refused("half", at::kInt), HasSubstr("not an integer"));
  EXPECT_THAT(refused("wide", at::kByte), HasSubstr("300 as int64"));
  EXPECT_THAT(refused("wide", at::kBFloat16), HasSubstr("out of the range"));
  EXPECT_THAT(refused("negative", at::kUInt64), HasSubstr("-1 as int32"));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { load_as("complex", at::zeros({1})); }),
      HasSubstr("complex64"));
}

TEST_F(LoadWith, AKeyAsksForTheRightSignature) {
  const StateDicts dicts{{"model", {{"w", counted({4})}}}};
  for (const auto& [step, key] :
       {std::pair<int64_t, std::string>{1, "right"}, {2, "wrong"}, {3, ""}}) {
    Saver saver(scratch_.path(), {.fsync = false, .hmac_key = key});
    saver.save(dicts, {.step = step});
  }
  const auto into = at::zeros({4});
  const StateDicts target{{"model", {{"w", into}}}};
  for (const auto* step : {"step-2", "step-3"}) {
    EXPECT_THAT(
        message_of_thrown<CheckpointError>([&] {
          load(scratch_.path() / step, target, {.hmac_key = "right"});
        }),
        HasSubstr(step));
    EXPECT_FALSE(into.any().item<bool>());
  }
  const auto loaded =
      load_newest(scratch_.path(), target, {.hmac_key = "right"});
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->folder.step, 1);
  EXPECT_THAT(loaded->damaged, ElementsAre(3, 2));
  EXPECT_TRUE(at::equal(into, counted({4})));
}

TEST(Conversion, KeepsEveryValueOfEveryDtypeOrRefuses) {
  const std::vector<at::ScalarType> integral{
      at::kBool,
      at::kByte,
      at::kChar,
      at::kUInt16,
      at::kShort,
      at::kUInt32,
      at::kInt,
      at::kUInt64,
      at::kLong};
  const std::vector<at::ScalarType> floating{
      at::kHalf,
      at::kBFloat16,
      at::kFloat,
      at::kDouble,
      at::kFloat8_e4m3fn,
      at::kFloat8_e5m2};
  auto all = integral;
  all.insert(all.end(), floating.begin(), floating.end());
  for (const auto from : all) {
    for (const auto to : all) {
      for (const double value : {0.0, 1.0, 200.0, -3.0, 70000.0, 5e9}) {
        const auto tensor = at::full({1}, value, at::kDouble).to(at::kFloat);
        if (!at::isFloatingType(from) &&
            (value < 0 || value > (from == at::kBool ? 1 : 127))) {
          continue; // No value of every such dtype.
        }
        const auto source = tensor.to(from);
        const auto before = source.to(at::kDouble).item<double>();
        if (!std::isfinite(before)) {
          continue;
        }
        const bool rounds = at::isFloatingType(from) && at::isFloatingType(to);
        try {
          const auto after =
              convert_exactly(source, to, "x").to(at::kDouble).item<double>();
          EXPECT_TRUE(rounds ? std::isfinite(after) : after == before)
              << from << " " << to << " " << before << " " << after;
        } catch (const c10::ValueError&) {
          EXPECT_NE(before, 0) << from << " " << to;
          EXPECT_NE(before, 1) << from << " " << to;
        }
      }
    }
  }
}

TEST(Conversion, ComparesIntegersExactly) {
  constexpr int64_t kBeyondDouble = (int64_t{1} << 53) + 1;
  const auto of = [](int64_t value) { return at::full({1}, value, at::kLong); };
  const auto refused = [](const at::Tensor& tensor, at::ScalarType to) {
    return message_of_thrown<c10::ValueError>(
        [&] { convert_exactly(tensor, to, "x"); });
  };
  EXPECT_THAT(
      refused(of(kBeyondDouble), at::kDouble),
      HasSubstr("holds 9007199254740993 as int64"));
  EXPECT_THAT(
      refused(of(-kBeyondDouble), at::kDouble), HasSubstr("-9007199254740993"));
  EXPECT_EQ(
      convert_exactly(of(kBeyondDouble - 1), at::kDouble, "x").item<double>(),
      9007199254740992.0);

  const auto first_of = [](const at::Tensor& tensor) {
    return *tensor.const_data_ptr<uint64_t>();
  };
  const auto largest = std::numeric_limits<int64_t>::max();
  const auto wide = convert_exactly(of(largest), at::kUInt64, "x");
  EXPECT_EQ(first_of(wide), static_cast<uint64_t>(largest));
  EXPECT_EQ(convert_exactly(wide, at::kLong, "x").item<int64_t>(), largest);
  const auto all_bits = of(-1).view(at::kUInt64);
  EXPECT_THAT(
      refused(all_bits, at::kLong),
      HasSubstr("18446744073709551615 as uint64"));

  const auto real = [](double value) {
    return at::full({1}, value, at::kDouble);
  };
  EXPECT_EQ(
      first_of(convert_exactly(real(std::ldexp(1.0, 63)), at::kUInt64, "x")),
      uint64_t{1} << 63);
  EXPECT_THAT(
      refused(real(std::ldexp(1.0, 63)), at::kLong), HasSubstr("range"));
  EXPECT_THAT(
      refused(real(std::ldexp(1.0, 64)), at::kUInt64), HasSubstr("range"));
  EXPECT_THAT(refused(real(1e300), at::kUInt64), HasSubstr("range"));
  EXPECT_EQ(
      convert_exactly(real(-std::ldexp(1.0, 63)), at::kLong, "x")
          .item<int64_t>(),
      std::numeric_limits<int64_t>::min());
}

} // namespace
} // namespace weft::checkpoint
