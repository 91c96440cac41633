#include "train/setup/checkpoint_key.h"

#include <filesystem>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "train/setup/load_recipe.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HmacKey : public ::testing::Test {
 protected:
  static config::Recipe recipe_with(const std::string& path) {
    return parse_recipe(
        fixtures::min_and("checkpoint: {hmac_key_file: \"" + path + "\"}\n"),
        "r.yaml");
  }

  std::string key_of(const std::string& content) const {
    const auto path = folder_.write("key", content);
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    return read_hmac_key(
        recipe_with(path), [](const auto& text) { FAIL() << text; });
  }

  std::string refusal(const std::string& path) const {
    return fixtures::message_of<mesh::UsageError>(
        [&] { read_hmac_key(recipe_with(path)); });
  }

  fixtures::TempFolder folder_;
};

TEST_F(HmacKey, IsTheFileWithoutItsLastLineFeed) {
  EXPECT_EQ(read_hmac_key(parse_recipe(fixtures::kMinRecipe, "r.yaml")), "");
  EXPECT_EQ(key_of("0123456789abcdef\n"), "0123456789abcdef");
  EXPECT_EQ(key_of("0123456789abcde\n\n"), "0123456789abcde\n");
  const std::string longest(4096, 'k');
  EXPECT_EQ(key_of(longest), longest);
  EXPECT_EQ(key_of(longest + "\n"), longest);
  const std::string binary("\0\xff\r 0123456789ab", 16);
  EXPECT_EQ(key_of(binary), binary);
}

TEST_F(HmacKey, IsRefusedAtTheKeyWithTheReason) {
  EXPECT_THAT(
      refusal("/nowhere/key"),
      AllOf(
          StartsWith("r.yaml:3:29: checkpoint.hmac_key_file: \"/nowhere/key\""),
          HasSubstr("No such file")));
  EXPECT_THAT(refusal(folder_.path()), HasSubstr("not a regular file"));
  EXPECT_THAT(
      refusal(folder_.write("empty", "")),
      HasSubstr("16 to 4096 bytes, got 0. Create one with `openssl rand"));
  EXPECT_THAT(
      refusal(folder_.write("short", "0123456789abcde\n")),
      HasSubstr("got 15"));
  EXPECT_THAT(
      refusal(folder_.write("long", std::string(4097, 'k'))),
      HasSubstr("got more"));
}

TEST_F(HmacKey, IsWarnedAboutIfOthersMayReadIt) {
  const auto path = folder_.write("key", "0123456789abcdef");
  std::vector<std::string> warnings;
  const auto read = [&](fs::perms extra) {
    fs::permissions(path, fs::perms::owner_read | extra);
    read_hmac_key(
        recipe_with(path), [&](const auto& text) { warnings.push_back(text); });
  };
  read(fs::perms::none);
  EXPECT_TRUE(warnings.empty());
  read(fs::perms::group_read);
  read(fs::perms::others_read);
  ASSERT_EQ(warnings.size(), 2);
  EXPECT_THAT(
      warnings[1],
      AllOf(
          HasSubstr("checkpoint.hmac_key_file"),
          HasSubstr("chmod 600 " + path)));
}

} // namespace
} // namespace weft::train
