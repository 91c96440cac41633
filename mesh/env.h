#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// The environment, read in one place. A variable that is set but empty counts
/// as unset.
namespace weft::mesh::env {

std::optional<std::string> get(const char* name);

/// Throws: UsageError that names the variable and says what `needed_by` it.
std::string require(const char* name, const char* needed_by);

/// A whole number in [least, most].
/// Throws: UsageError naming the variable, its value and the range.
std::optional<int64_t> get_int(const char* name, int64_t least, int64_t most);
int64_t require_int(
    const char* name,
    const char* needed_by,
    int64_t least,
    int64_t most);

/// Whether the variable is 1, true or yes in any case.
bool is_true(const char* name);

/// Not thread-safe: only while the process starts.
void unset(const char* name);

} // namespace weft::mesh::env
