#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// Access to environment variables. A variable that is set but empty counts as
/// unset.
namespace weft::mesh::env {

std::optional<std::string> get(const char* name);

/// Returns an integer in [least, most], or nothing if the variable is not set.
/// Throws: UsageError naming the variable, its value and the range.
std::optional<int64_t> get_int(const char* name, int64_t least, int64_t most);

/// Converts `value`, which was read elsewhere. Throws as get_int() does.
int64_t
to_int(const char* name, const std::string& value, int64_t least, int64_t most);

/// Returns true if the variable is 1, true or yes (case-insensitive).
bool is_true(const char* name);

// Not thread-safe: only while the process starts.

void unset(const char* name);
void set(const char* name, const char* value);
/// Sets the variable unless it is set.
void set_default(const char* name, const char* value);

} // namespace weft::mesh::env
