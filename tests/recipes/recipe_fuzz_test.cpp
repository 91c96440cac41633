#include <random>

#include <gtest/gtest.h>

#include "mesh/error.h"
#include "recipes/config/recipe.h"
#include "recipes/config/validate.h"
#include "tests/recipes/fixtures.h"

namespace weft::recipes {
namespace {

constexpr std::string_view kFragments[] = {
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    ",",
    "- ",
    "? ",
    "\n",
    "\r\n",
    "\t",
    "  ",
    "#",
    "'",
    "\"",
    "&a ",
    "*a",
    "!!int ",
    "! ",
    "|\n",
    ">-\n",
    "---\n",
    "...\n",
    "%TAG\n",
    "<<: ",
    "~",
    "null",
    ".nan",
    "-.inf",
    "1e999",
    "0o7",
    "0x1F",
    "no",
    "-1",
    "\\",
    "\\x00",
    "\\U0010ffff",
    "\xef\xbb\xbf",
    "\xff",
    "\xc3\xa9",
    "@",
    "`",
    "{foo:",
    "99999999999999999999",
    "model:",
    "dp: 2",
    "[[[[[[[[",
    "{a: {a: {a: {a: "};

// Changes a text in a few places, always in the same way for a seed.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string mutate(std::string text) {
    for (uint64_t n = 1 + below(6); n > 0; --n) {
      change(text);
    }
    return text;
  }

  uint64_t below(uint64_t limit) { return random_() % limit; }

 private:
  void change(std::string& text) {
    const size_t at = below(text.size() + 1);
    const size_t length = std::min(text.size() - at, below(12));
    switch (below(6)) {
      case 0:
        text.insert(at, kFragments[below(std::size(kFragments))]);
        break;
      case 1:
        text.replace(at, length, kFragments[below(std::size(kFragments))]);
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(below(text.size() + 1), text.substr(at, length * 4));
        break;
      case 4:
        text.insert(at, 1, static_cast<char>(below(256)));
        break;
      default:
        text.resize(at);
        break;
    }
  }

  std::mt19937_64 random_;
};

// Loads, validates and writes a recipe; false if it was refused. Anything but
// a UsageError that is one line and names its place fails the test.
bool survives(const std::string& text, const std::string& override_text) {
  const std::vector<std::string> overrides(
      override_text.empty() ? 0 : 1, override_text);
  try {
    Recipe recipe = parse_recipe(text, "r.yaml", overrides);
    validate(recipe, 4);
    EXPECT_EQ(parse_recipe(to_yaml(recipe), "r.yaml"), recipe);
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
      read_text(WEFT_SOURCE_DIR "/recipes/quickstart.yaml"),
      least_and("mesh: {dp: 2, tp: 2}\nseed: 1\n"),
      least_and("train:\n  steps: 3\noptimizer: {lr: 1}\n")};
  const char* wanted = std::getenv("WEFT_FUZZ_RUNS");
  const int64_t runs = wanted == nullptr ? 4000 : std::atoll(wanted);
  Mutator mutator(/*seed=*/1);
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

} // namespace
} // namespace weft::recipes
