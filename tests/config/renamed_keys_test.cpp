// Keys of yesterday: refused where a user writes them, read where a run has
// stored them.
#include "config/renamed_keys.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/recipe.h"
#include "config/schema.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"

namespace weft::config {
namespace {

using ::testing::StartsWith;

// By former name: a value that is no default.
std::map<std::string_view, std::string> other_values() {
  return {
      {"checkpoint.sync", "false"},
      {"communication_budget.implicit", "3"},
      {"ddp.power_sgd_start", "7"},
      {"lora.targets", "['**.down_proj']"},
      {"sentinel.every", "3"},
      {"sentinel.seal", "false"},
      {"sentinel.straggler_every", "2"},
      {"trace.first", "5"},
      {"train.non_finite", "skip"},
      {"train.non_finite_streak", "4"}};
}

// The key stands in line 4.
std::string recipe_with(std::string_view key, const std::string& value) {
  const auto dot = key.find('.');
  return fixtures::min_and(
      std::string(key.substr(0, dot)) + ":\n  " +
      std::string(key.substr(dot + 1)) + ": " + value + "\n");
}

std::string refusal(
    std::string_view text,
    const std::vector<std::string>& overrides = {}) {
  return fixtures::message_of<mesh::UsageError>(
      [&] { read_recipe(text, "r.yaml", overrides); });
}

TEST(RenamedKeys, AreAllTriedHere) {
  const auto values = other_values();
  EXPECT_EQ(renamed_keys().size(), values.size());
  for (const auto& key : renamed_keys()) {
    EXPECT_TRUE(values.contains(key.before)) << key.before;
    EXPECT_EQ(find_key(key.before), nullptr) << key.before;
    EXPECT_NE(find_key(key.now), nullptr) << key.now;
  }
}

TEST(RenamedKeys, AreRefusedWithTheNameOfToday) {
  for (const auto& [before, value] : other_values()) {
    const auto text = std::string(before) + " is called " +
                      std::string(find_renamed_key(before)->now) + " now";
    EXPECT_EQ(refusal(recipe_with(before, value)), "r.yaml:4:3: " + text);
    const auto override_text = std::string(before) + "=" + value;
    EXPECT_EQ(
        refusal(fixtures::kMinRecipe, {override_text}),
        "override " + override_text + ": " + text);
  }
}

TEST(RenamedKeys, OfStoredRecipesAreRead) {
  for (const auto& [before, value] : other_values()) {
    SCOPED_TRACE(before);
    const auto former =
        parse_stored_recipe(recipe_with(before, value), "r.yaml");
    const auto present = parse_stored_recipe(
        recipe_with(find_renamed_key(before)->now, value), "r.yaml");
    EXPECT_EQ(former, present);
    EXPECT_NE(former, parse_stored_recipe(fixtures::kMinRecipe, "r.yaml"));
  }
}

TEST(RenamedSections, AreRefusedWithAnyContent) {
  for (const auto* section : {"sentinel:", "sentinel: {}", "sentinel: 3"}) {
    EXPECT_EQ(
        refusal(section), "r.yaml:1:1: sentinel is called integrity_check now");
  }
  EXPECT_THAT(
      refusal("sentinel: {other: 3}"),
      StartsWith("r.yaml:1:12: sentinel.other: unknown key"));
}

} // namespace
} // namespace weft::config
