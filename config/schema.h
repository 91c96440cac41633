#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/recipe.h"

namespace weft::recipes {

using OptionField = OptionMap& (*)(Recipe&);
/// The field of a recipe that a key fills; its type is the key's type.
using Field = std::variant<
    int64_t& (*)(Recipe&),
    double& (*)(Recipe&),
    bool& (*)(Recipe&),
    std::string& (*)(Recipe&),
    std::vector<std::string>& (*)(Recipe&),
    std::array<double, 2>& (*)(Recipe&),
    OptionField>;

/// Which numbers a key takes.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  /// `least` and `most` themselves are not taken.
  bool min_excluded = false;
  bool max_excluded = false;
  /// One more number that is taken, with a meaning of its own.
  std::optional<int64_t> special = std::nullopt;
};

/// Holds where `key`, one with choices, has one of `values`; without a key
/// always.
struct Condition {
  std::string_view key = "";
  std::vector<std::string_view> values = {};
  /// Or one that is not among the schema's choices: a model that a program
  /// links in.
  bool or_linked_in = false;
};

/// One key of the recipe.
struct Key {
  std::string_view path;
  Field field;
  std::string_view doc;
  std::string_view unit = "";
  Range range = {};
  /// Of a text: all that it may be; empty: anything.
  std::vector<std::string_view> choices = {};
  bool required = false;
  /// Where the key means something; elsewhere it is refused, not required and
  /// not written.
  Condition only = {};
  /// What a default that is filled in later will be, e.g. "outputs/<name>".
  std::string_view computed_default = "";
};

struct Section {
  std::string_view name;
  std::string_view doc;
};

/// The single source of names, types, ranges, documentation and, through the
/// defaults of Recipe's fields, defaults. In the order of the sections.
std::span<const Key> schema();
std::span<const Section> sections();

/// nullptr: there is no such key.
const Key* find_key(std::string_view path);
/// "model.options" for "model.options.width"; nullptr: `path` is no option.
const Key* find_options(std::string_view path);
bool is_option_map(const Key& key);
bool is_section(std::string_view path);
/// "model.rope_scaling" of "model.rope_scaling.factor"; of a key at the top
/// level "".
std::string_view section_of(std::string_view path);
/// The values with which it holds, in words.
std::vector<std::string_view> enabling_values(const Condition& condition);
/// Whether the key means something in `recipe`.
bool applies(const Key& key, const Recipe& recipe);

/// "whole number", "list of texts", ...
std::string type_name(const Key& key);
/// "at least 1", "-1 or at least 1", "cpu, cuda"; empty: anything.
std::string allowed_values(const Key& key);
/// The default as YAML or in words; "required" if there is none.
std::string default_value(const Key& key);

/// What is wrong with a number, with `written` for it in the message, or with a
/// text; empty: nothing.
std::string
number_error(const Range& range, double value, const std::string& written);
std::string choice_error(
    std::span<const std::string_view> choices,
    const std::string& value);
/// What is wrong with the value that `recipe` has for `key`; empty: nothing.
std::string find_value_error(const Key& key, const Recipe& recipe);

/// docs/recipe.md.
std::string schema_markdown();
/// The keys as plain text, one a line, for --help.
std::string schema_help();

} // namespace weft::recipes
