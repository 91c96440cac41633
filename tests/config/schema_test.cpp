#include "config/schema.h"

#include <cstdlib>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/suggest.h"
#include "tests/config/fixtures.h"

namespace weft::config {
namespace {

using ::testing::HasSubstr;

TEST(Schema, KeysAreUniqueDocumentedAndInASection) {
  std::set<std::string_view> seen;
  for (const Key& key : schema()) {
    SCOPED_TRACE(key.path);
    EXPECT_TRUE(seen.insert(key.path).second);
    EXPECT_FALSE(key.doc.empty());
    EXPECT_TRUE(key.doc.ends_with('.'));
    const size_t dot = key.path.find('.');
    if (dot != std::string_view::npos) {
      EXPECT_TRUE(is_section(key.path.substr(0, dot)));
    }
  }
}

template <class T>
const void* address_of(T& field) {
  return &field;
}
const void* address_of(const ChoiceRef& choice) {
  return choice.field();
}

TEST(Schema, NoTwoKeysFillTheSameField) {
  Recipe recipe;
  std::set<const void*> fields;
  for (const Key& key : schema()) {
    const void* field = std::visit(
        [&](auto get) -> const void* { return address_of(get(recipe)); },
        key.field);
    EXPECT_TRUE(fields.insert(field).second) << key.path;
  }
}

TEST(Schema, DefaultsAreAllowed) {
  const Recipe defaults;
  for (const Key& key : schema()) {
    if (!key.required && key.computed_default.empty()) {
      EXPECT_EQ(find_value_error(key, defaults), "") << key.path;
    }
  }
}

TEST(Schema, DescribesKeys) {
  const Key& dp = *find_key("mesh.dp");
  EXPECT_EQ(type_name(dp), "int");
  EXPECT_EQ(allowed_values(dp), "-1 or at least 1, at most 16777216");
  EXPECT_EQ(default_value(dp), "-1");
  EXPECT_EQ(default_value(*find_key("model.dim")), "required");
  EXPECT_EQ(default_value(*find_key("optimizer.betas")), "[0.9, 0.95]");
  EXPECT_EQ(default_value(*find_key("output_dir")), "outputs/<name>");
  EXPECT_EQ(allowed_values(*find_key("device")), "cpu, cuda");
  EXPECT_EQ(find_key("mesh"), nullptr);
  EXPECT_TRUE(is_section("mesh"));
  EXPECT_FALSE(is_section("mesh.dp"));
}

// WEFT_WRITE_DOCS=1 writes the file instead.
TEST(Schema, DocsAreUpToDate) {
  const std::string path = WEFT_SOURCE_DIR "/docs/recipe.md";
  if (std::getenv("WEFT_WRITE_DOCS") != nullptr) {
    std::ofstream(path) << schema_markdown();
  }
  EXPECT_EQ(fixtures::read_text(path), schema_markdown())
      << "WEFT_WRITE_DOCS=1 build/bin/config_test "
         "--gtest_filter=Schema.DocsAreUpToDate";
}

TEST(Schema, HelpNamesEveryKey) {
  const std::string help = schema_help();
  for (const Key& key : schema()) {
    EXPECT_THAT(help, HasSubstr("  " + std::string(key.path) + " "));
  }
}

TEST(Suggest, EditDistanceCountsSwapsOnce) {
  EXPECT_EQ(base::edit_distance("", ""), 0);
  EXPECT_EQ(base::edit_distance("abc", ""), 3);
  EXPECT_EQ(base::edit_distance("heds", "heads"), 1);
  EXPECT_EQ(base::edit_distance("tp", "pt"), 1);
  EXPECT_EQ(base::edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(base::edit_distance(std::string(5000, 'a'), "b"), 5000);
}

TEST(Suggest, NamesTheNearestKey) {
  EXPECT_EQ(suggest_key("model.head"), "did you mean model.heads?");
  EXPECT_EQ(suggest_key("train.step"), "did you mean train.steps?");
  EXPECT_EQ(
      suggest_key("data.seq_length"), "did you mean data.sequence_length?");
  EXPECT_EQ(suggest_key("optimiser"), "did you mean optimizer?");
  EXPECT_EQ(suggest_key("lr_scheduler"), "did you mean lr_schedule?");
  EXPECT_EQ(
      suggest_key("train.batch_size"), "did you mean train.global_batch_size?");
  EXPECT_EQ(suggest_key("mesh.cp"), "did you mean mesh.dp?");
  EXPECT_EQ(
      suggest_key("warmup_steps"), "did you mean lr_schedule.warmup_steps?");
  EXPECT_EQ(suggest_key("mesh.pipeline"), "mesh has dp, dp_shard, tp");
  EXPECT_THAT(suggest_key("qqqqqqqq"), HasSubstr("a recipe has name, device"));
}

} // namespace
} // namespace weft::config
