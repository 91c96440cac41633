#include "mesh/bootstrap/job_variables.h"

#include <algorithm>

#include "mesh/bootstrap/env.h"
#include "mesh/error/error.h"

namespace weft::mesh {

bool JobVariables::has_any(std::initializer_list<const char*> names) const {
  return std::any_of(
      names.begin(), names.end(), [&](const char* name) { return has(name); });
}

const char* JobVariables::first_set(
    std::initializer_list<const char*> names) const {
  const auto found = std::find_if(
      names.begin(), names.end(), [&](const char* name) { return has(name); });
  return found == names.end() ? *names.begin() : *found;
}

std::string JobVariables::show(const char* name) const {
  const auto value = text(name);
  return value ? detail::concat(name, "=", *value)
               : detail::concat(name, " unset");
}

std::optional<int64_t>
JobVariables::number(const char* name, int64_t least, int64_t most) const {
  const auto value = text(name);
  return value ? std::optional(env::to_int(name, *value, least, most))
               : std::nullopt;
}

std::string JobVariables::required_text(const char* name, const char* because)
    const {
  auto value = text(name);
  if (!value) {
    throw_error<UsageError>(detail::concat(
        "[environment] ",
        name,
        " is not set, but ",
        show(because),
        " is. Set both, or neither."));
  }
  return *value;
}

int64_t JobVariables::required(
    const char* name,
    const char* because,
    int64_t least,
    int64_t most) const {
  return env::to_int(name, required_text(name, because), least, most);
}

} // namespace weft::mesh
