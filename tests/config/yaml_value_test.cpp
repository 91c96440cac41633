#include "config/yaml_value.h"

#include <limits>

#include <gtest/gtest.h>

namespace weft::config {
namespace {

template <class T>
T read(const std::string& text) {
  T value{};
  read_value(parse_yaml(text), value);
  return value;
}

template <class T>
std::string value_refusal(const std::string& text) {
  try {
    read<T>(text);
  } catch (const YamlError& error) {
    return error.what();
  }
  return "";
}

TEST(YamlValue, WholeNumbers) {
  EXPECT_EQ(read<int64_t>("1000"), 1000);
  EXPECT_EQ(read<int64_t>("-1"), -1);
  EXPECT_EQ(read<int64_t>("+7"), 7);
  EXPECT_EQ(read<int64_t>("0"), 0);
  EXPECT_EQ(
      read<int64_t>("9223372036854775807"),
      std::numeric_limits<int64_t>::max());
  EXPECT_EQ(
      read<int64_t>("-9223372036854775808"),
      std::numeric_limits<int64_t>::min());
  EXPECT_EQ(
      value_refusal<int64_t>("9223372036854775808"),
      "expected an integer that fits in 64 bits, found the number "
      "9223372036854775808");
  EXPECT_EQ(
      value_refusal<int64_t>("1e3"),
      "expected an integer, found the number 1e3; write 1000");
  EXPECT_EQ(
      value_refusal<int64_t>("4.0"),
      "expected an integer, found the number 4.0; write 4");
  EXPECT_EQ(
      value_refusal<int64_t>("4.5"),
      "expected an integer, found the number 4.5");
  EXPECT_EQ(
      value_refusal<int64_t>("'5'"),
      "expected an integer, found the string \"5\"");
  EXPECT_EQ(
      value_refusal<int64_t>("four"),
      "expected an integer, found the string \"four\"");
  EXPECT_EQ(value_refusal<int64_t>("true"), "expected an integer, found true");
  EXPECT_EQ(value_refusal<int64_t>("~"), "expected an integer, found nothing");
  EXPECT_EQ(value_refusal<int64_t>("[1]"), "expected an integer, found a list");
  EXPECT_EQ(
      value_refusal<int64_t>("{a: 1}"), "expected an integer, found a map");
  for (const auto* text : {"0x10", "0o7", "007", "1_000", "1,000", "--1"}) {
    EXPECT_NE(
        value_refusal<int64_t>(text).find("found the string"),
        std::string::npos)
        << text;
  }
}

TEST(YamlValue, Numbers) {
  EXPECT_EQ(read<double>("3"), 3.0);
  EXPECT_EQ(read<double>("1.0e-3"), 1e-3);
  EXPECT_EQ(read<double>("1e3"), 1000.0);
  EXPECT_EQ(read<double>("-.5"), -0.5);
  EXPECT_EQ(read<double>("+2.E+1"), 20.0);
  for (const auto* text : {".nan", ".NaN", ".inf", "-.inf", "+.INF"}) {
    EXPECT_NE(
        value_refusal<double>(text).find("expected a finite number, found"),
        std::string::npos)
        << text;
  }
  EXPECT_EQ(
      value_refusal<double>("1e999"),
      "expected a number that fits in 64 bits, found the number 1e999");
  for (const auto* text :
       {"1.2.3", "e5", ".", "1e", "1e+", "nan", "'1'", "1f"}) {
    EXPECT_NE(
        value_refusal<double>(text).find("expected a number, found the string"),
        std::string::npos)
        << text;
  }
}

TEST(YamlValue, TruthValues) {
  EXPECT_TRUE(read<bool>("true"));
  EXPECT_TRUE(read<bool>("True"));
  EXPECT_FALSE(read<bool>("FALSE"));
  EXPECT_EQ(
      value_refusal<bool>("no"),
      "expected a bool (true, false), found the string \"no\"");
  EXPECT_EQ(
      value_refusal<bool>("1"),
      "expected a bool (true, false), found the number 1");
  EXPECT_EQ(
      value_refusal<bool>("'true'"),
      "expected a bool (true, false), found the string \"true\"");
}

TEST(YamlValue, Texts) {
  EXPECT_EQ(read<std::string>("abc"), "abc");
  EXPECT_EQ(read<std::string>("no"), "no");
  EXPECT_EQ(read<std::string>("'12'"), "12");
  EXPECT_EQ(read<std::string>("\"\""), "");
  EXPECT_EQ(
      value_refusal<std::string>("12"),
      "expected a string, found the number 12; put the value in quotes to make "
      "it a string");
  EXPECT_EQ(
      value_refusal<std::string>("\"a\\0\""),
      "expected a string without control characters, found the string "
      "\"a\\u0000\"");
}

TEST(YamlValue, Lists) {
  EXPECT_EQ(
      read<std::vector<std::string>>("[a, 'b c']"),
      (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(
      value_refusal<std::vector<std::string>>("a.txt"),
      "expected a list of strings, found the string \"a.txt\"; write "
      "[\"a.txt\"]");
  EXPECT_EQ(
      value_refusal<std::vector<std::string>>("[a, [b]]"),
      "expected a string, found a list");
  using Pair = std::array<double, 2>;
  EXPECT_EQ(read<Pair>("[0.9, 1]"), (Pair{0.9, 1.0}));
  EXPECT_EQ(
      value_refusal<Pair>("[0.9]"),
      "expected a list of two numbers, found a list of 1");
  EXPECT_EQ(
      value_refusal<Pair>("0.9"),
      "expected a list of two numbers, found the number 0.9");
}

TEST(YamlValue, LongTextsAreShortenedInMessages) {
  const std::string message = value_refusal<int64_t>(std::string(10'000, 'x'));
  EXPECT_LT(message.size(), 150U);
}

TEST(YamlValue, WritingAndReadingGivesTheSame) {
  for (const int64_t value :
       {int64_t{0},
        int64_t{-1},
        std::numeric_limits<int64_t>::min(),
        std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(read<int64_t>(write_value(value)), value);
  }
  for (const double value :
       {0.0,
        0.1,
        1.0 / 3.0,
        25.0,
        1e-5,
        1e22,
        -1e300,
        5e-324,
        std::numeric_limits<double>::max()}) {
    EXPECT_EQ(read<double>(write_value(value)), value) << write_value(value);
  }
  for (const std::string value :
       {"plain",       "a/b.txt", "",        "12",
        "true",        "null",    "~",       ".inf",
        "1e3",         "007",     "-",       "- a",
        "a: b",        "a #b",    "#",       "[x",
        "*.txt",       "&a",      "!t",      "it's \"so\"",
        "back\\slash", "...",     " space ", "\xe2\x82\xac\xf0\x9f\x98\x80"}) {
    EXPECT_EQ(read<std::string>(write_value(value)), value) << value;
    const std::vector<std::string> list = {value, "other"};
    EXPECT_EQ(read<std::vector<std::string>>(write_value(list)), list);
  }
}

} // namespace
} // namespace weft::config
