#include <algorithm>
#include <cmath>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/schema.h"
#include "config/suggest.h"
#include "config/yaml_value.h"

namespace weft::config {
namespace {

std::string number_text(double value) {
  return std::abs(value) < 1e15 && std::trunc(value) == value
             ? fmt::format("{}", static_cast<int64_t>(value))
             : fmt::format("{}", value);
}

std::string range_text(const Range& range) {
  std::string text;
  if (range.special) {
    text = fmt::format("{} or ", *range.special);
  }
  if (std::isfinite(range.least)) {
    text += (range.min_excluded ? "above " : "at least ") +
            number_text(range.least);
  }
  if (std::isfinite(range.most)) {
    text += (range.max_excluded ? ", below " : ", at most ") +
            number_text(range.most);
  }
  return text;
}

bool is_in(const Range& range, double value) {
  const bool high_enough =
      range.min_excluded ? value > range.least : value >= range.least;
  const bool low_enough =
      range.max_excluded ? value < range.most : value <= range.most;
  return (high_enough && low_enough) ||
         (range.special && value == static_cast<double>(*range.special));
}

// A run's name is a folder's: nothing that leaves outputs/ or hides in it.
std::string name_error(const std::string& name) {
  const auto is_fine = [](unsigned char c) {
    return c < 0x80 &&
           (std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-');
  };
  const bool fine = !name.empty() && name.size() <= 128 && name[0] != '.' &&
                    std::all_of(name.begin(), name.end(), is_fine);
  return fine ? ""
              : fmt::format(
                    "{} cannot name a folder: 1 to 128 letters, digits, '.', "
                    "'_' and '-', not beginning with '.'",
                    write_value(name));
}

std::string string_error(const Key& key, const std::string& value) {
  if (key.path == "name") {
    return name_error(value);
  }
  return "";
}

// Returns the error of a model type. A program can register more types than
// key.choices has.
std::string type_error(const Key& key, const Recipe& recipe) {
  const auto& type = recipe.model.type;
  const auto& linked = recipe.origins.models.names;
  auto choices = key.choices;
  choices.insert(choices.end(), linked.begin(), linked.end());
  const auto fault = choice_error(choices, type);
  const auto nearest = nearest_name(type, choices);
  return fault.empty() || nearest.empty()
             ? fault
             : fmt::format("{}; did you mean {}?", fault, nearest);
}

std::string list_error(const Key& key, const std::vector<std::string>& value) {
  if (value.empty() && key.required) {
    return "expected at least one, found an empty list";
  }
  const auto empty = std::find(value.begin(), value.end(), "");
  return empty == value.end()
             ? ""
             : fmt::format("[{}] is an empty string", empty - value.begin());
}

std::string with_effect(std::string doc, const Effect& effect) {
  const auto text = effect_text(effect);
  return text.empty() ? doc : doc + " " + text;
}

std::string full_doc(const Key& key) {
  const auto doc = with_effect(std::string(key.doc), key.effect);
  return key.only.key.empty()
             ? doc
             : fmt::format(
                   "{} Applies only if {} is {}.",
                   doc,
                   key.only.key,
                   fmt::join(enabling_values(key.only), " or "));
}

std::string key_row(const Key& key) {
  const std::string allowed = allowed_values(key);
  const std::string fallback = default_value(key);
  return fmt::format(
      "| `{}` | {}{} | {} | {} | {} |\n",
      key.path,
      type_name(key),
      key.unit.empty() ? "" : fmt::format(" ({})", key.unit),
      key.required || key.path == "name" ? fallback // in words
                                         : fmt::format("`{}`", fallback),
      allowed.empty() ? "" : allowed,
      full_doc(key));
}

std::string section_markdown(std::string_view name, std::string_view doc) {
  std::string text = fmt::format(
      "\n## {}\n{}\n\n"
      "| key | type | default | allowed | meaning |\n"
      "|---|---|---|---|---|\n",
      name.empty() ? "Run" : name,
      doc);
  for (const Key& key : schema()) {
    if (section_of(key.path) == name) {
      text += key_row(key);
    }
  }
  return text;
}

} // namespace

std::vector<std::string_view> enabling_values(const Condition& condition) {
  auto all = condition.values;
  if (condition.or_linked_in) {
    all.emplace_back("a type that the program registers");
  }
  return all;
}

std::string
number_error(const Range& range, double value, const std::string& written) {
  return is_in(range, value)
             ? ""
             : fmt::format("expected {}, found {}", range_text(range), written);
}

std::string type_name(const Key& key) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "int",
      "float",
      "bool",
      "string",
      "list of strings",
      "list of two floats",
      "map",
      "string"};
  return std::string(kNames.at(key.field.index()));
}

std::string allowed_values(const Key& key) {
  const auto choices = allowed_choices(key);
  return choices.empty() ? range_text(key.range)
                         : fmt::format("{}", fmt::join(choices, ", "));
}

std::string default_value(const Key& key) {
  if (key.required) {
    return "required";
  }
  if (!key.computed_default.empty()) {
    return std::string(key.computed_default);
  }
  Recipe defaults;
  return std::visit(
      [&](auto field) { return write_value(field(defaults)); }, key.field);
}

std::string find_value_error(const Key& key, const Recipe& recipe) {
  auto& fields = const_cast<Recipe&>(recipe); // The fields are only read.
  return std::visit(
      [&](auto field) -> std::string {
        const auto& value = field(fields);
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, OptionMap>) {
          return ""; // The model reads them.
        } else if constexpr (std::is_same_v<Value, ChoiceRef>) {
          return ""; // It has no other values.
        } else if constexpr (std::is_same_v<Value, std::string>) {
          return key.path == "model.type" ? type_error(key, recipe)
                                          : string_error(key, value);
        } else if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
          return list_error(key, value);
        } else if constexpr (std::is_same_v<Value, std::array<double, 2>>) {
          const bool first = is_in(key.range, value[0]);
          return number_error(
              key.range, first ? value[1] : value[0], write_value(value));
        } else {
          return number_error(
              key.range, static_cast<double>(value), write_value(value));
        }
      },
      key.field);
}

std::string schema_markdown() {
  std::string text =
      "# Recipe reference\n\n"
      "A recipe is a YAML file that describes a run. Weft checks it before "
      "the run starts: an unknown or repeated key,\na value of the wrong type "
      "or an invalid value ends the program with exit code 2. The message has "
      "the file, line,\ncolumn and the nearest valid key. The command line can "
      "override any key:\n`weft train recipes/quickstart.yaml train.steps=20 "
      "'data.paths=[\"my/text\"]'`.\n"
      "YAML anchors, aliases, merge keys and tags are not supported. The "
      "limits are 1 MiB and 32 levels.\n\n"
      "This file is generated from the schema, `config/schema_*.cpp`.\n";
  text += section_markdown("", "The top-level keys.");
  for (const Section& section : sections()) {
    text += section_markdown(
        section.name, with_effect(std::string(section.doc), section.effect));
  }
  return text;
}

std::string schema_help() {
  std::string text;
  for (const Key& key : schema()) {
    const std::string allowed = allowed_values(key);
    text += fmt::format(
        "  {:<26} {} [{}]{}\n      {}\n",
        key.path,
        type_name(key),
        default_value(key),
        allowed.empty() ? "" : ", " + allowed,
        full_doc(key));
  }
  return text;
}

} // namespace weft::config
