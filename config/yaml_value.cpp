#include "config/yaml_value.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace weft::config {
namespace {

enum class Form { kWhole, kNumber, kNotFinite, kTruth, kNothing, kText };

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

size_t skip_digits(std::string_view text, size_t i) {
  while (i < text.size() && is_digit(text[i])) {
    ++i;
  }
  return i;
}

std::string_view without_sign(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) {
    text.remove_prefix(1);
  }
  return text;
}

// Returns true if `text`, which has no sign, is a decimal number of YAML's core
// schema.
bool is_decimal(std::string_view text) {
  size_t i = skip_digits(text, 0);
  size_t digits = i;
  if (i < text.size() && text[i] == '.') {
    const size_t end = skip_digits(text, i + 1);
    digits += end - i - 1;
    i = end;
  }
  if (digits == 0) {
    return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    const size_t begin =
        i + 1 < text.size() && (text[i + 1] == '+' || text[i + 1] == '-')
            ? i + 2
            : i + 1;
    i = skip_digits(text, begin);
    return i > begin && i == text.size();
  }
  return i == text.size();
}

bool is_one_of(
    std::string_view text,
    std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// Returns the type of an unquoted scalar in YAML's core schema. 007 is text,
// because some readers would take it as octal.
Form form_of(std::string_view text) {
  const std::string_view magnitude = without_sign(text);
  const bool all_digits =
      !magnitude.empty() && skip_digits(magnitude, 0) == magnitude.size();
  if (all_digits && (magnitude == "0" || magnitude[0] != '0')) {
    return Form::kWhole;
  }
  if (!all_digits && is_decimal(magnitude)) {
    return Form::kNumber;
  }
  if (is_one_of(magnitude, {".inf", ".Inf", ".INF"}) ||
      is_one_of(text, {".nan", ".NaN", ".NAN"})) {
    return Form::kNotFinite;
  }
  if (is_one_of(text, {"true", "True", "TRUE", "false", "False", "FALSE"})) {
    return Form::kTruth;
  }
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) {
    return Form::kNothing;
  }
  return Form::kText;
}

Form form_of(const YamlNode& node) {
  return node.quoted ? Form::kText : form_of(std::string_view(node.text));
}

std::string shortened_text(const std::string& text) {
  constexpr size_t kMax = 60;
  return text.size() <= kMax
             ? text
             : fmt::format("{}...", std::string_view(text).substr(0, kMax));
}

std::string quoted(const std::string& text) {
  return base::json_text(nlohmann::json(text));
}

bool is_scalar(const YamlNode& node) {
  return node.kind == YamlNode::Kind::kScalar;
}

[[noreturn]] void refuse_value(
    const YamlNode& node,
    std::string_view expected,
    std::string_view hint = "") {
  throw YamlError(
      node.where,
      fmt::format("expected {}, found {}{}", expected, describe(node), hint));
}

template <class T>
bool convert(std::string_view text, T& value) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
  }
  const auto result =
      std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

// Returns "; write 1000" for 1e3 or 1000.0. Empty for other values.
std::string whole_number_hint(const YamlNode& node) {
  double number = 0;
  if (form_of(node) != Form::kNumber || !convert(node.text, number) ||
      std::trunc(number) != number || std::abs(number) > 1e15) {
    return "";
  }
  return fmt::format("; write {}", static_cast<int64_t>(number));
}

} // namespace

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map";
    case YamlNode::Kind::kScalar:
      break;
  }
  switch (form_of(node)) {
    case Form::kWhole:
    case Form::kNumber:
    case Form::kNotFinite:
      return "the number " + shortened_text(node.text);
    case Form::kTruth:
      return node.text;
    case Form::kNothing:
      return "nothing";
    case Form::kText:
      break;
  }
  return "the string " + quoted(shortened_text(node.text));
}

void read_value(const YamlNode& node, int64_t& value) {
  if (!is_scalar(node) || form_of(node) != Form::kWhole) {
    refuse_value(
        node, "an integer", is_scalar(node) ? whole_number_hint(node) : "");
  }
  if (!convert(node.text, value)) {
    refuse_value(node, "an integer that fits in 64 bits");
  }
}

void read_value(const YamlNode& node, double& value) {
  const Form form = is_scalar(node) ? form_of(node) : Form::kText;
  if (form == Form::kNotFinite) {
    refuse_value(node, "a finite number");
  }
  if (form != Form::kWhole && form != Form::kNumber) {
    refuse_value(node, "a number");
  }
  if (!convert(node.text, value) || !std::isfinite(value)) {
    refuse_value(node, "a number that fits in 64 bits");
  }
}

void read_value(const YamlNode& node, bool& value) {
  if (!is_scalar(node) || form_of(node) != Form::kTruth) {
    refuse_value(node, "a bool (true, false)");
  }
  value = node.text[0] == 't' || node.text[0] == 'T';
}

void read_value(const YamlNode& node, std::string& value) {
  if (!is_scalar(node)) {
    refuse_value(node, "a string");
  }
  if (form_of(node) != Form::kText) {
    refuse_value(
        node, "a string", "; put the value in quotes to make it a string");
  }
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(node.text.begin(), node.text.end(), is_control)) {
    refuse_value(node, "a string without control characters");
  }
  value = node.text;
}

void read_value(const YamlNode& node, std::vector<std::string>& value) {
  if (node.kind != YamlNode::Kind::kList) {
    refuse_value(
        node,
        "a list of strings",
        is_scalar(node) ? fmt::format("; write [{}]", quoted(node.text)) : "");
  }
  std::vector<std::string> texts(node.items.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    read_value(node.items[i], texts[i]);
  }
  value = std::move(texts);
}

void read_value(const YamlNode& node, std::array<double, 2>& value) {
  if (node.kind != YamlNode::Kind::kList) {
    refuse_value(node, "a list of two numbers");
  }
  if (node.items.size() != value.size()) {
    throw YamlError(
        node.where,
        fmt::format(
            "expected a list of two numbers, found a list of {}",
            node.items.size()));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    read_value(node.items[i], value[i]);
  }
}

void read_value(const YamlNode& node, ChoiceRef value) {
  std::string name;
  read_value(node, name);
  const auto names = value.names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw YamlError(node.where, choice_error(names, name));
  }
  value.set(static_cast<size_t>(found - names.begin()));
}

std::string choice_error(
    std::span<const std::string_view> choices,
    std::string_view value) {
  if (choices.empty() ||
      std::find(choices.begin(), choices.end(), value) != choices.end()) {
    return "";
  }
  return fmt::format(
      "expected {}{}, found {}",
      choices.size() > 1 ? "one of " : "",
      fmt::join(choices, ", "),
      write_value(std::string(value)));
}

std::string normalized_value(const YamlNode& node) {
  constexpr std::string_view kExpected =
      "a number, a string, a bool, or a list of these";
  if (node.kind == YamlNode::Kind::kList) {
    std::string list;
    for (const auto& item : node.items) {
      if (!is_scalar(item)) {
        refuse_value(item, "a number, a string, or a bool");
      }
      list += (list.empty() ? "" : ", ") + normalized_value(item);
    }
    return fmt::format("[{}]", list);
  }
  if (!is_scalar(node) || form_of(node) == Form::kNothing) {
    refuse_value(node, kExpected);
  }
  const auto as = [&]<class T>(T value) {
    read_value(node, value);
    return write_value(value);
  };
  switch (form_of(node)) {
    case Form::kWhole:
      return as(int64_t());
    case Form::kNumber:
    case Form::kNotFinite: // The conversion refuses it.
      return as(double());
    case Form::kTruth:
      return as(bool());
    default:
      return as(std::string());
  }
}

std::string write_value(int64_t value) {
  return std::to_string(value);
}

std::string write_value(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string write_value(bool value) {
  return value ? "true" : "false";
}

std::string write_value(const std::string& value) {
  const auto is_safe = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '/' || c == '.';
  };
  // A text such as "..." would end the document.
  const bool plain = form_of(std::string_view(value)) == Form::kText &&
                     !value.starts_with('.') &&
                     std::all_of(value.begin(), value.end(), is_safe);
  return plain ? value : quoted(value);
}

std::string write_value(const std::vector<std::string>& value) {
  std::string list;
  for (const auto& text : value) {
    list += (list.empty() ? "" : ", ") + write_value(text);
  }
  return "[" + list + "]";
}

std::string write_value(const std::array<double, 2>& value) {
  return fmt::format("[{}, {}]", write_value(value[0]), write_value(value[1]));
}

std::string write_value(ChoiceRef value) {
  return write_value(std::string(value.name()));
}

std::string write_value(
    const std::map<std::string, std::string, std::less<>>& values) {
  std::string map;
  for (const auto& [name, value] : values) {
    map += fmt::format(
        "{}{}: {}", map.empty() ? "" : ", ", write_value(name), value);
  }
  return "{" + map + "}";
}

} // namespace weft::config
