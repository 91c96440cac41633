#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// The environment, read in one place. A variable that is set but empty counts
/// as unset.
namespace weft::mesh::env {

std::optional<std::string> get(const char* name);

/// A whole number in [least, most].
/// Throws: UsageError naming the variable, its value and the range.
std::optional<int64_t> get_int(const char* name, int64_t least, int64_t most);

/// The same of a value that was read elsewhere.
int64_t
to_int(const char* name, const std::string& value, int64_t least, int64_t most);

/// Whether the variable is 1, true or yes in any case.
bool is_true(const char* name);

// Not thread-safe: only while the process starts.

void unset(const char* name);
/// Sets the variable unless it is set.
void set_default(const char* name, const char* value);

} // namespace weft::mesh::env
