#include <filesystem>

#include <gtest/gtest.h>

#include "config/recipe.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "tests/fuzz/recipe_input.h"
#include "tests/fuzz/recipe_mutator.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;
using test::RecipeMutator;

// Loads, validates and writes a recipe; false if it was refused. Anything but
// a UsageError that is one line and names its place fails the test.
bool survives(const std::string& text, const std::string& override_text) {
  const std::vector<std::string> overrides(
      override_text.empty() ? 0 : 1, override_text);
  try {
    config::Recipe recipe = parse_recipe(text, "r.yaml", overrides);
    validate(recipe, 4);
    EXPECT_EQ(parse_recipe(config::to_yaml(recipe), "r.yaml"), recipe);
    return true;
  } catch (const mesh::UsageError& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_TRUE(
        message.starts_with("r.yaml:") || message.starts_with("override "))
        << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return false;
  }
}

// WEFT_FUZZ_RUNS=1000000 makes it long.
TEST(RecipeFuzz, MutatedRecipesAreLoadedOrRefused) {
  const std::vector<std::string> seeds = {
      fixtures::read_text(WEFT_SOURCE_DIR "/recipes/quickstart.yaml"),
      fixtures::min_and("mesh: {dp: 2, tp: 2}\nseed: 1\n"),
      fixtures::min_and("train:\n  steps: 3\noptimizer: {lr: 1}\n")};
  const char* wanted = std::getenv("WEFT_FUZZ_RUNS");
  const int64_t runs = wanted == nullptr ? 4000 : std::atoll(wanted);
  RecipeMutator mutator(/*seed=*/1);
  int64_t loaded = 0;
  for (int64_t run = 0; run < runs && !::testing::Test::HasFailure(); ++run) {
    const std::string text = mutator.mutate(seeds[mutator.below(seeds.size())]);
    const std::string override_text =
        mutator.below(4) == 0 ? "mesh=" + mutator.mutate("{dp: 2, tp: 2}") : "";
    SCOPED_TRACE(::testing::PrintToString(text) + " " + override_text);
    loaded += survives(text, override_text) ? 1 : 0;
  }
  EXPECT_GT(loaded, runs / 100) << "hardly a mutation is harmless";
  EXPECT_LT(loaded, runs * 9 / 10) << "hardly a mutation does harm";
}

std::vector<std::string> texts_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".yaml") {
      paths.push_back(entry.path());
    }
  }
  std::ranges::sort(paths); // the seed counts from here on
  std::vector<std::string> texts;
  for (const auto& path : paths) {
    texts.push_back(fixtures::read_text(path.string()));
  }
  return texts;
}

// The long form is scripts/fuzz.sh.
TEST(RecipeFuzz, EveryRefusalSaysLineAndColumn) {
  constexpr int kRuns = 2000;
  auto seeds = texts_in(WEFT_SOURCE_DIR "/recipes");
  const auto recipes = seeds.size();
  ASSERT_GE(recipes, 8);
  for (auto& text : texts_in(WEFT_SOURCE_DIR "/tests/fuzz/corpus/recipe")) {
    seeds.push_back(std::move(text));
  }
  RecipeMutator mutator(/*seed=*/2);
  int accepted = 0;
  for (int run = 0; run < kRuns; ++run) {
    // As many from whole recipes as from pieces of grammar.
    const auto count = run % 2 == 0 ? recipes : seeds.size();
    const auto text = mutator.mutate(seeds[mutator.below(count)]);
    SCOPED_TRACE(::testing::PrintToString(text));
    accepted += test::fuzz_recipe(text).is_accepted ? 1 : 0;
  }
  EXPECT_GT(accepted, kRuns / 100);
  EXPECT_LT(accepted, kRuns * 9 / 10);
}

// Names begin with what a reader must do: see tests/fuzz/make_corpus.py.
TEST(RecipeFuzz, ThePiecesOfGrammarAreReadOrRefused) {
  int count = 0;
  for (const auto& entry :
       fs::directory_iterator(WEFT_SOURCE_DIR "/tests/fuzz/corpus/recipe")) {
    const auto name = entry.path().filename().string();
    const auto verdict =
        test::fuzz_recipe(fixtures::read_text(entry.path().string()));
    EXPECT_EQ(verdict.is_accepted, name.starts_with("ok-"))
        << name << ": " << verdict.error;
    ++count;
  }
  EXPECT_GT(count, 50);
}

} // namespace
} // namespace weft::train
