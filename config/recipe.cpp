#include "config/recipe.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/renamed_keys.h"
#include "config/schema.h"
#include "config/suggest.h"
#include "config/yaml_tree.h"
#include "config/yaml_value.h"
#include "mesh/error/error.h"

namespace weft::config {
namespace {

[[noreturn]] void refuse_at(
    const std::string& place,
    std::string_view message) {
  mesh::throw_error<mesh::UsageError>(fmt::format("{}: {}", place, message));
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

std::string shortened_line(std::string text) {
  constexpr size_t kMax = 80;
  if (text.size() > kMax) {
    text = text.substr(0, kMax) + "...";
  }
  std::replace_if(text.begin(), text.end(), is_control, ' ');
  return text;
}

class RecipeReader {
 public:
  enum class Text {
    kRecipe,
    /// The text of to_yaml(). It may have earlier names of keys.
    kStored,
    /// A command-line override. Its places name the override instead of a line.
    kOverride
  };

  RecipeReader(Recipe& recipe, std::string source, Text text)
      : recipe_(recipe), source_(std::move(source)), text_(text) {}

  YamlNode parse(std::string_view text) const {
    try {
      return parse_yaml(text);
    } catch (const YamlError& error) {
      refuse_at(place(error.where()), error.what());
    }
  }

  void read_document(const YamlNode& root) {
    if (root.kind == YamlNode::Kind::kNull) {
      refuse_at(source_, "the recipe is empty");
    }
    if (root.kind != YamlNode::Kind::kMap) {
      refuse_at(
          place(root.where),
          "expected a map of keys to values, found " + describe(root));
    }
    read_map(root, "");
  }

  // Reads the value at `path`. Errors point to `near` if the value is empty.
  void read(const std::string& path, const YamlNode& value, Position near) {
    const Position where =
        value.kind == YamlNode::Kind::kNull ? near : value.where;
    if (const auto* renamed = find_renamed_key(path)) {
      refuse_renamed(*renamed, near);
      read(std::string(renamed->now), value, near);
    } else if (const auto* section = find_renamed_section(path)) {
      if (value.kind != YamlNode::Kind::kMap || value.keys.empty()) {
        refuse_renamed(*section, near);
      } else {
        read_map(value, path + ".");
      }
    } else if (const Key* map = find_options(path)) {
      read_option(*map, path, value, where);
    } else if (const Key* key = find_key(path); key && !is_option_map(*key)) {
      read_key(*key, value, where);
    } else if (key == nullptr && !is_section(path)) {
      refuse_at(
          place(near),
          fmt::format("{}: unknown key; {}", path, suggest_key(path)));
    } else if (value.kind != YamlNode::Kind::kMap) {
      refuse_at(
          place(where),
          fmt::format("{}: expected a map, found {}", path, describe(value)));
    } else {
      if (key != nullptr) {
        recipe_.origins.places.insert_or_assign(path, place(where));
      }
      read_map(value, path + ".");
    }
  }

 private:
  // Refuses an earlier name of a key, unless the recipe is a stored one.
  void refuse_renamed(const RenamedKey& key, Position near) const {
    if (text_ != Text::kStored) {
      refuse_at(
          place(near), fmt::format("{} is called {} now", key.before, key.now));
    }
  }

  std::string place(Position where) const {
    return text_ == Text::kOverride || where.line == 0
               ? source_
               : fmt::format("{}:{}:{}", source_, where.line, where.column);
  }

  std::string key_text(const YamlNode& key, const std::string& prefix) const {
    if (key.kind != YamlNode::Kind::kScalar || key.text.empty() ||
        std::any_of(key.text.begin(), key.text.end(), is_control)) {
      refuse_at(place(key.where), "a key is a word, found " + describe(key));
    }
    if (key.text == "<<" && !key.quoted) {
      refuse_at(place(key.where), "merge keys (<<) are not supported");
    }
    if (key.text.find('.') != std::string::npos) {
      refuse_at(
          place(key.where),
          fmt::format(
              "{}{}: a key must not contain dots. Write `{}:`, and `{}:` "
              "indented below it",
              prefix,
              shortened_line(key.text),
              shortened_line(key.text.substr(0, key.text.find('.'))),
              shortened_line(key.text.substr(key.text.find('.') + 1))));
    }
    return shortened_line(key.text);
  }

  void read_map(const YamlNode& map, const std::string& prefix) {
    std::map<std::string, int64_t> lines;
    for (size_t i = 0; i < map.keys.size(); ++i) {
      const YamlNode& key = map.keys[i];
      const std::string path = prefix + key_text(key, prefix);
      const auto [first, is_new] = lines.emplace(path, key.where.line);
      if (!is_new) {
        refuse_at(
            place(key.where),
            fmt::format(
                "{}: this key is repeated. It is already set in line {}",
                path,
                first->second));
      }
      read(path, map.items[i], key.where);
    }
  }

  void read_option(
      const Key& map,
      const std::string& path,
      const YamlNode& value,
      Position where) {
    auto& options = std::get<OptionField>(map.field)(recipe_);
    try {
      options.insert_or_assign(
          path.substr(map.path.size() + 1), normalized_value(value));
    } catch (const YamlError& error) {
      const bool inside = value.kind == YamlNode::Kind::kList;
      refuse_at(
          place(inside ? error.where() : where),
          fmt::format("{}: {}", path, error.what()));
    }
    auto& places = recipe_.origins.places;
    places.insert_or_assign(path, place(where));
    places.emplace(map.path, place(where)); // An override may lack the map.
  }

  void read_key(const Key& key, const YamlNode& value, Position where) {
    try {
      const auto read_field = [&](auto field) {
        if constexpr (!std::is_same_v<decltype(field), OptionField>) {
          // read() passes the entries of an option map to read_option(), so
          // that no map comes here.
          read_value(value, field(recipe_));
        }
      };
      std::visit(read_field, key.field);
    } catch (const YamlError& error) {
      const bool inside = value.kind == YamlNode::Kind::kList;
      refuse_at(
          place(inside ? error.where() : where),
          fmt::format("{}: {}", key.path, error.what()));
    }
    const std::string fault = find_value_error(key, recipe_);
    if (!fault.empty()) {
      refuse_at(place(where), fmt::format("{}: {}", key.path, fault));
    }
    recipe_.origins.places.insert_or_assign(
        std::string(key.path), place(where));
  }

  Recipe& recipe_;
  std::string source_;
  Text text_;
};

void apply_override(Recipe& recipe, const std::string& text) {
  const std::string source = "override " + shortened_line(text);
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    refuse_at(source, "expected key.path=value");
  }
  RecipeReader reader(recipe, source, RecipeReader::Text::kOverride);
  reader.read(
      text.substr(0, equals), reader.parse(text.substr(equals + 1)), {});
}

// Checks that the recipe has all keys that the model and the data need, and no
// others.
void check_presence(const Recipe& recipe) {
  for (const Key& key : schema()) {
    const bool written = recipe.origins.places.contains(key.path);
    if (!applies(key, recipe) && written) {
      refuse(
          recipe,
          key.path,
          fmt::format(
              "does not apply if {} is {}; it applies if {} is {}",
              key.only.key,
              value_of(recipe, key.only.key),
              key.only.key,
              fmt::join(enabling_values(key.only), ", ")));
    }
    if (applies(key, recipe) && key.required && !written) {
      refuse(recipe, key.path, "is required but missing");
    }
  }
}

// Returns the lines that open `section` after the keys of section `before`.
std::string section_heads(std::string_view before, std::string_view section) {
  if (section.empty() || section == before ||
      before.starts_with(fmt::format("{}.", section))) {
    return "";
  }
  const auto parent = section_of(section);
  return section_heads(before, parent) +
         fmt::format(
             "{}{}:\n",
             parent.empty() ? "" : "  ",
             section.substr(parent.empty() ? 0 : parent.size() + 1));
}

std::string stem_of(const std::string& source) {
  return std::filesystem::path(source).stem().string();
}

Recipe read_values(
    std::string_view text,
    const std::string& source,
    RecipeReader::Text kind,
    KnownModels models) {
  Recipe recipe;
  recipe.origins.source = source;
  recipe.origins.models = std::move(models);
  RecipeReader reader(recipe, source, kind);
  reader.read_document(reader.parse(text));
  return recipe;
}

} // namespace

Recipe read_recipe(
    std::string_view text,
    const std::string& source,
    std::span<const std::string> overrides,
    KnownModels models) {
  auto recipe =
      read_values(text, source, RecipeReader::Text::kRecipe, std::move(models));
  for (const std::string& override_text : overrides) {
    apply_override(recipe, override_text);
  }
  return recipe;
}

void complete(Recipe& recipe) {
  check_presence(recipe);
  if (recipe.name.empty()) {
    recipe.name = stem_of(recipe.origins.source);
    const std::string fault = find_value_error(*find_key("name"), recipe);
    if (!fault.empty()) {
      refuse(recipe, "name", fault + "; give the recipe a name");
    }
  }
}

Recipe parse_stored_recipe(
    std::string_view text,
    const std::string& source,
    KnownModels models) {
  auto recipe =
      read_values(text, source, RecipeReader::Text::kStored, std::move(models));
  complete(recipe);
  return recipe;
}

std::string value_of(const Recipe& recipe, std::string_view path) {
  auto& fields = const_cast<Recipe&>(recipe); // The fields are only read.
  if (const Key* map = find_options(path)) {
    const auto& options = std::get<OptionField>(map->field)(fields);
    const auto found = options.find(path.substr(map->path.size() + 1));
    return found == options.end() ? "nothing" : found->second;
  }
  const Key* key = find_key(path);
  TORCH_INTERNAL_ASSERT(key != nullptr, "no such key: ", path);
  return std::visit(
      [&](auto field) { return write_value(field(fields)); }, key->field);
}

std::string MeshConfig::to_string() const {
  return is_sharded() ? fmt::format("dp={} dp_shard={} tp={}", dp, dp_shard, tp)
                      : fmt::format("dp={} tp={}", dp, tp);
}

std::vector<std::string> differing_keys(const Recipe& a, const Recipe& b) {
  std::set<std::string> options;
  for (const auto* recipe : {&a, &b}) {
    for (const auto& [name, value] : recipe->model.options) {
      options.insert("model.options." + name);
    }
  }
  std::vector<std::string> keys;
  for (const Key& key : schema()) {
    if (!is_option_map(key) && (has_effect(key, a) || has_effect(key, b)) &&
        value_of(a, key.path) != value_of(b, key.path)) {
      keys.emplace_back(key.path);
    }
  }
  std::ranges::copy_if(
      options, std::back_inserter(keys), [&](const std::string& path) {
        return value_of(a, path) != value_of(b, path);
      });
  return keys;
}

std::string to_yaml(const Recipe& recipe) {
  std::string text;
  std::string_view section;
  for (const Key& key : schema()) {
    if (!applies(key, recipe)) {
      continue;
    }
    const auto own = section_of(key.path);
    text += section_heads(section, own);
    section = own;
    const auto depth = std::count(key.path.begin(), key.path.end(), '.');
    text += fmt::format(
        "{}{}: {}\n",
        std::string(static_cast<size_t>(2 * depth), ' '),
        key.path.substr(own.empty() ? 0 : own.size() + 1),
        value_of(recipe, key.path));
  }
  return text;
}

std::string place_of(const Recipe& recipe, std::string_view key) {
  const auto found = recipe.origins.places.find(key);
  return fmt::format(
      "{}: {}",
      found == recipe.origins.places.end() ? recipe.origins.source
                                           : found->second,
      key);
}

void refuse(
    const Recipe& recipe,
    std::string_view key,
    const std::string& message) {
  refuse_at(place_of(recipe, key), message);
}

} // namespace weft::config
