#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/recipe.h"

namespace weft::config {

/// The allowed values of an option.
template <class T>
struct Option {
  /// The default. An option without a default is required.
  std::optional<T> fallback = std::nullopt;
  /// The range of a number.
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  /// The allowed strings. Empty allows any string.
  std::vector<std::string_view> choices = {};
};

/// The values of model.options for a model that a program registers.
class ModelOptions {
 public:
  explicit ModelOptions(const Recipe& recipe) : recipe_(recipe) {}

  /// The whole recipe, for keys outside model.options, e.g.
  /// data.sequence_length. Mesh sizes given as -1 are already resolved.
  const Recipe& recipe() const { return recipe_; }

  /// Returns the option `name`. T is int64_t, double, bool, std::string, or
  /// std::vector<std::string>.
  /// Throws: mesh::UsageError "r.yaml:7:12: model.options.NAME: ...".
  template <class T>
  T get(const std::string& name, const Option<T>& option = {});

  /// Reports an error that types and ranges cannot express.
  /// Throws: mesh::UsageError in the format of get().
  [[noreturn]] void refuse(std::string_view name, const std::string& message)
      const;

  /// Returns all options that get() was asked for, including defaults.
  /// Throws: mesh::UsageError at an option that it was not asked for.
  OptionMap finish() const;

 private:
  /// Returns null if the recipe does not have it.
  const std::string* find(const std::string& name) const;
  [[noreturn]] void refuse_missing(const std::string& name) const;

  const Recipe& recipe_;
  OptionMap asked_;
};

} // namespace weft::config
