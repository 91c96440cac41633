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

namespace weft::config {

using OptionField = OptionMap& (*)(Recipe&);
/// Returns the field of a recipe that a key sets. Its type is the key's type.
using Field = std::variant<
    int64_t& (*)(Recipe&),
    double& (*)(Recipe&),
    bool& (*)(Recipe&),
    std::string& (*)(Recipe&),
    std::vector<std::string>& (*)(Recipe&),
    std::array<double, 2>& (*)(Recipe&),
    OptionField,
    ChoiceRef (*)(Recipe&)>;

/// The range of a number.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  /// True if `least` or `most` itself is not allowed.
  bool min_excluded = false;
  bool max_excluded = false;
  /// One more allowed number with a special meaning.
  std::optional<int64_t> special = std::nullopt;
};

/// True if `key`, which has choices, has one of `values`. Without a key it is
/// always true.
struct Condition {
  std::string_view key = "";
  std::vector<std::string_view> values = {};
  /// Also true for a value that is not among the schema's choices: a model that
  /// a program registers.
  bool or_linked_in = false;
};

/// A condition for an effect: `key` has one of `values`, as YAML, or none of
/// them if `is_not`. Without a key it is always true. The key that has no
/// effect may be written, but only with its default: see
/// find_ineffective_key().
struct Effect {
  std::string_view key = "";
  std::vector<std::string_view> values = {};
  bool is_not = false;
};

/// One key of the recipe.
struct Key {
  std::string_view path;
  Field field;
  std::string_view doc;
  std::string_view unit = "";
  Range range = {};
  /// The allowed values of model.type, to which programs add. Other keys with a
  /// list of values have an enum, see allowed_choices().
  std::vector<std::string_view> choices = {};
  bool required = false;
  /// The condition under which the key applies. If it is false, setting the key
  /// is an error, the key is never required, and to_yaml() leaves it out.
  Condition only = {};
  /// The condition under which the key has an effect, in addition to that of
  /// its section.
  Effect effect = {};
  /// The description of a default that is computed later, e.g.
  /// "outputs/<name>".
  std::string_view computed_default = "";
};

struct Section {
  std::string_view name;
  std::string_view doc;
  /// The condition under which the keys of the section have an effect.
  Effect effect = {};
};

/// The single source of names, types, ranges, documentation and, with the
/// defaults of Recipe's fields, default values. In the order of sections.
std::span<const Key> schema();
std::span<const Section> sections();

/// Returns nullptr if there is no such key.
const Key* find_key(std::string_view path);
/// Returns "model.options" for "model.options.width", or nullptr if `path` is
/// not an option.
const Key* find_options(std::string_view path);
bool is_option_map(const Key& key);
/// Returns the strings that the key allows. Empty if it allows any, or is not a
/// string.
std::span<const std::string_view> allowed_choices(const Key& key);
bool is_section(std::string_view path);
/// Returns "model.rope_scaling" for "model.rope_scaling.factor", and "" for a
/// top-level key.
std::string_view section_of(std::string_view path);
/// Returns the values for which the condition is true, for messages.
std::vector<std::string_view> enabling_values(const Condition& condition);
/// Returns true if the key applies to `recipe`.
bool applies(const Key& key, const Recipe& recipe);
/// Returns true if the key's value has an effect in `recipe`, whose mesh is
/// resolved.
bool has_effect(const Key& key, const Recipe& recipe);
/// Returns the first key that has another value than its default and no effect,
/// or nullptr.
const Key* find_ineffective_key(const Recipe& recipe);
/// Returns why the key has no effect in `recipe`, for messages: "lora.rank is
/// 0".
std::string why_without_effect(const Key& key, const Recipe& recipe);
/// Returns the condition as a sentence, "It has no effect if lora.rank is 0.",
/// or an empty string if it is always true.
std::string effect_text(const Effect& effect);

/// Returns "int", "list of strings", ...
std::string type_name(const Key& key);
/// Returns "at least 1", "-1 or at least 1", "cpu, cuda". Empty if any value is
/// allowed.
std::string allowed_values(const Key& key);
/// Returns the default as YAML or in words; "required" if there is none.
std::string default_value(const Key& key);

/// Describes the error in a number, shown as `written`. Empty if there is none.
std::string
number_error(const Range& range, double value, const std::string& written);
/// Sets the key in `to` to its value in `from`.
void copy_value(const Key& key, const Recipe& from, Recipe& to);
/// Describes the error in the value of `key` in `recipe`. Empty if there is
/// none.
std::string find_value_error(const Key& key, const Recipe& recipe);

/// Returns the content of docs/recipe.md.
std::string schema_markdown();
/// Returns the keys as plain text, one per line, for --help.
std::string schema_help();

} // namespace weft::config
