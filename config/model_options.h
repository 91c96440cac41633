#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/recipe.h"

namespace weft::recipes {

/// What an option may be.
template <class T>
struct Option {
  /// Where the recipe does not have it; without one it is required.
  std::optional<T> fallback = std::nullopt;
  /// Of numbers.
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  /// Of a text; empty: anything.
  std::vector<std::string_view> choices = {};
};

/// What a recipe says below model.options, for a model that a program links in.
class ModelOptions {
 public:
  explicit ModelOptions(const Recipe& recipe) : recipe_(recipe) {}

  /// The rest, e.g. data.sequence_length; its mesh has no -1 any more.
  const Recipe& recipe() const { return recipe_; }

  /// The option `name`. T: int64_t, double, bool, std::string, or
  /// std::vector<std::string>.
  /// Throws: mesh::UsageError "r.yaml:7:12: model.options.NAME: what is wrong".
  template <class T>
  T get(const std::string& name, const Option<T>& option = {});

  /// For what the types and ranges do not say.
  /// Throws: mesh::UsageError, as get().
  [[noreturn]] void refuse(std::string_view name, const std::string& message)
      const;

  /// All that get() was asked for, fallbacks too.
  /// Throws: mesh::UsageError at an option for which it was not.
  OptionMap finish() const;

 private:
  /// Null: not there.
  const std::string* find(const std::string& name) const;
  [[noreturn]] void refuse_missing(const std::string& name) const;

  const Recipe& recipe_;
  OptionMap asked_;
};

} // namespace weft::recipes
