#include "config/yaml_tree.h"

#include <gtest/gtest.h>

namespace weft::config {
namespace {

using Kind = YamlNode::Kind;

struct Refusal {
  int64_t line = -1;
  int64_t column = -1;
  std::string message;
};

Refusal refusal_of(std::string_view text) {
  try {
    parse_yaml(text);
  } catch (const YamlError& error) {
    return {error.where().line, error.where().column, error.what()};
  }
  return {};
}

std::string repeat(std::string_view part, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += part;
  }
  return text;
}

TEST(YamlTree, KeepsValuesOrderAndPlaces) {
  const YamlNode root = parse_yaml("b: [1, 'two']\na:\n  c: ~\n  b: x\n");
  ASSERT_EQ(root.kind, Kind::kMap);
  ASSERT_EQ(root.keys.size(), 2U);
  EXPECT_EQ(root.keys[0].text, "b");
  EXPECT_EQ(root.keys[1].text, "a");
  EXPECT_EQ(root.keys[1].where.line, 2);

  const YamlNode& list = root.items[0];
  ASSERT_EQ(list.kind, Kind::kList);
  ASSERT_EQ(list.items.size(), 2U);
  EXPECT_FALSE(list.items[0].quoted);
  EXPECT_TRUE(list.items[1].quoted);
  EXPECT_EQ(list.items[1].where.line, 1);
  EXPECT_EQ(list.items[1].where.column, 8);

  const YamlNode& map = root.items[1];
  ASSERT_EQ(map.kind, Kind::kMap);
  EXPECT_EQ(map.items[0].kind, Kind::kNull);
  EXPECT_EQ(map.keys[1].where.line, 4);
  EXPECT_EQ(map.keys[1].where.column, 3);
}

TEST(YamlTree, KeepsRepeatedKeysForTheReaderToRefuse) {
  const YamlNode root = parse_yaml("a: 1\na: 2\n");
  ASSERT_EQ(root.keys.size(), 2U);
  EXPECT_EQ(root.keys[1].where.line, 2);
}

TEST(YamlTree, NothingIsNull) {
  for (const auto* text : {"", "\n\n", "# only a comment\n", "---\n", "~"}) {
    EXPECT_EQ(parse_yaml(text).kind, Kind::kNull) << text;
  }
}

TEST(YamlTree, ByteOrderMarkAndCrLfAreFine) {
  const YamlNode root = parse_yaml(
      "\xef\xbb\xbf"
      "a: 1\r\nb: 2\r\n");
  ASSERT_EQ(root.items.size(), 2U);
  EXPECT_EQ(root.items[0].text, "1");
  EXPECT_EQ(root.keys[0].where.column, 1);
  EXPECT_EQ(root.keys[1].where.line, 2);
}

TEST(YamlTree, DepthIsTakenToTheLimitAndNoFurther) {
  const size_t most = kMaxYamlDepth;
  const auto flow = [](size_t depth) {
    return repeat("[", depth) + repeat("]", depth);
  };
  EXPECT_EQ(refusal_of(flow(most)).line, -1);
  EXPECT_EQ(refusal_of(flow(most + 1)).message, "nested more than 32 deep");
  EXPECT_EQ(refusal_of(flow(most + 1)).column, 33);
  EXPECT_EQ(refusal_of(repeat("- ", most) + "x").line, -1);
  const Refusal block = refusal_of(repeat("- ", most + 1) + "x");
  EXPECT_EQ(block.message, "nested more than 32 deep");
  EXPECT_EQ(block.line, 1);
  const auto indented = [](size_t depth) {
    std::string text;
    for (size_t i = 0; i < depth; ++i) {
      text.append(i, ' ').append("a:\n");
    }
    return text;
  };
  EXPECT_EQ(refusal_of(indented(most)).line, -1);
  EXPECT_EQ(refusal_of(indented(most + 1)).line, 33);
}

TEST(YamlTree, BracketsInTextAreNotDepth) {
  const std::string many = repeat("[", 40);
  EXPECT_EQ(parse_yaml("a: '" + many + "'").items[0].text, many);
  EXPECT_EQ(parse_yaml("a: \"\\\"" + many + "\"").items[0].text, "\"" + many);
  EXPECT_EQ(parse_yaml("a: x" + many).items[0].text, "x" + many);
  EXPECT_EQ(parse_yaml("a: 1 # " + many).items[0].text, "1");
  EXPECT_EQ(parse_yaml("a: it's # " + many).items[0].text, "it's");
}

TEST(YamlTree, SizeIsTakenToTheLimitAndNoFurther) {
  const std::string text = "a: 1 #" + std::string(kMaxYamlBytes - 6, 'x');
  EXPECT_EQ(refusal_of(text).line, -1);
  const Refusal more = refusal_of(text + "x");
  EXPECT_EQ(more.line, 0);
  EXPECT_EQ(
      more.message,
      "the recipe has 1048577 bytes, but at most 1048576 are allowed");
}

TEST(YamlTree, ValuesAreCountedToTheLimitAndNoFurther) {
  const auto list = [](int64_t count) {
    return "[" + repeat("a,", static_cast<size_t>(count)) + "]";
  };
  EXPECT_EQ(refusal_of(list(kMaxYamlNodes - 1)).line, -1);
  EXPECT_EQ(refusal_of(list(kMaxYamlNodes)).message, "more than 100000 values");
}

struct BadYaml {
  std::string_view text;
  int64_t line;
  int64_t column;
  std::string_view message;
};

TEST(YamlTree, RefusesWhatRecipesDoNotUse) {
  const BadYaml cases[] = {
      {"a: &x 1\n", 1, 4, "anchors are not supported: &x"},
      {"a: 1\nb: *a\n", 2, 4, "the referenced anchor is not defined"},
      {"a: !!int 1\n", 1, 4, "tags (!) are not supported"},
      {"a: ! 1\n", 1, 4, "tags (!) are not supported"},
      {"a: !x [1]\n", 1, 4, "tags (!) are not supported"},
      {"!!map {a: 1}\n", 1, 1, "tags (!) are not supported"},
      {"a: 1\n---\nb: 2\n", 2, 1, "a second YAML document"},
      {"a: 1\n...\nb: 2\n", 3, 1, "a second YAML document"},
      {"{foo:", 1, 5, "Check for an unclosed bracket or quote"},
      {"a: [1, 2\n",
       2,
       1,
       "end of sequence flow not found. The text ends here"},
      {"a: \"x\nb: 1\n", 1, 4, "this quote is never closed"},
      {"a: ['it''s]\n", 1, 5, "this quote is never closed"},
      {"a: 1\n  b: 2\n", 2, 4, "not YAML: illegal map value"},
      {"a: ]\n", 1, 4, "not YAML: illegal flow end"},
      {"a: \"\\q\"\n", 1, 7, "not YAML: unknown escape character: q"},
      {"%YAML 3.0\n---\na: 1\n", 1, 1, "not YAML: YAML major version"}};
  for (const BadYaml& bad : cases) {
    SCOPED_TRACE(bad.text);
    const Refusal refusal = refusal_of(bad.text);
    EXPECT_EQ(refusal.line, bad.line);
    EXPECT_EQ(refusal.column, bad.column);
    EXPECT_NE(refusal.message.find(bad.message), std::string::npos)
        << refusal.message;
  }
}

TEST(YamlTree, RefusesBytesThatAreNoText) {
  const auto refusal = [](std::string_view bytes) {
    return refusal_of("a: 1\nb: " + std::string(bytes));
  };
  using namespace std::string_view_literals;
  EXPECT_EQ(refusal("\0"sv).message, "control character 0x00");
  EXPECT_EQ(refusal("\0"sv).line, 2);
  EXPECT_EQ(refusal("\0"sv).column, 4);
  EXPECT_EQ(refusal("\x04").message, "control character 0x04");
  EXPECT_EQ(refusal("\x7f").message, "control character 0x7f");
  EXPECT_EQ(refusal("1\rc: 2").message, "control character 0x0d");
  for (const auto* bytes :
       {"\x80",
        "\xc0\x80",
        "\xc1\xbf",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xe2\x82",
        "\xff\xfe"}) {
    EXPECT_NE(refusal(bytes).message.find("is not UTF-8"), std::string::npos);
    EXPECT_EQ(refusal(bytes).column, 4);
  }
  for (const auto* good :
       {"\xc2\x80",
        "\xe2\x82\xac",
        "\xed\x9f\xbf",
        "\xf0\x9f\x98\x80",
        "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(refusal(good).line, -1);
  }
}

} // namespace
} // namespace weft::config
