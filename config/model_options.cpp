#include "config/model_options.h"

#include <ranges>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/schema.h"
#include "config/suggest.h"
#include "config/yaml_value.h"

namespace weft::config {
namespace {

std::string option_key(std::string_view name) {
  return fmt::format("model.options.{}", name);
}

template <class T>
std::string option_error(const Option<T>& option, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return choice_error(option.choices, value);
  } else if constexpr (
      std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
    return number_error(
        {.least = option.least, .most = option.most},
        static_cast<double>(value),
        write_value(value));
  } else {
    return "";
  }
}

} // namespace

template <class T>
T ModelOptions::get(const std::string& name, const Option<T>& option) {
  const std::string* written = find(name);
  if (written == nullptr && !option.fallback) {
    refuse_missing(name);
  }
  T value = option.fallback.value_or(T());
  if (written != nullptr) {
    try {
      read_value(parse_yaml(*written), value);
    } catch (const YamlError& error) {
      refuse(name, error.what());
    }
  }
  if (const auto fault = option_error(option, value); !fault.empty()) {
    refuse(name, fault);
  }
  asked_.insert_or_assign(name, write_value(value));
  return value;
}

template int64_t ModelOptions::get(const std::string&, const Option<int64_t>&);
template double ModelOptions::get(const std::string&, const Option<double>&);
template bool ModelOptions::get(const std::string&, const Option<bool>&);
template std::string ModelOptions::get(
    const std::string&,
    const Option<std::string>&);
template std::vector<std::string> ModelOptions::get(
    const std::string&,
    const Option<std::vector<std::string>>&);

void ModelOptions::refuse(std::string_view name, const std::string& message)
    const {
  config::refuse(recipe_, option_key(name), message);
}

OptionMap ModelOptions::finish() const {
  for (const auto& name : recipe_.model.options | std::views::keys) {
    if (asked_.contains(name)) {
      continue;
    }
    const auto known = asked_ | std::views::keys;
    const auto nearest = nearest_name(name, known);
    const auto hint =
        !nearest.empty() ? fmt::format("did you mean {}?", nearest)
        : asked_.empty() ? "it has none"
                         : fmt::format("it has {}", fmt::join(known, ", "));
    refuse(
        name,
        fmt::format(
            "model.type={} has no such option; {}", recipe_.model.type, hint));
  }
  return asked_;
}

const std::string* ModelOptions::find(const std::string& name) const {
  const auto& options = recipe_.model.options;
  const auto found = options.find(name);
  return found == options.end() ? nullptr : &found->second;
}

// Suggests `name` for a written option that the model has not read, because
// that option may be misspelled.
void ModelOptions::refuse_missing(const std::string& name) const {
  const auto nearest =
      nearest_name(name, recipe_.model.options | std::views::keys);
  if (!nearest.empty() && !asked_.contains(nearest)) {
    refuse(
        nearest,
        fmt::format(
            "model.type={} has no such option; did you mean {}?",
            recipe_.model.type,
            name));
  }
  config::refuse(
      recipe_,
      recipe_.model.options.empty() ? "model.type" : "model.options",
      fmt::format("{} is required but missing", option_key(name)));
}

} // namespace weft::config
