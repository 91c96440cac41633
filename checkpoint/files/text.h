#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files/error.h"
#include "mesh/error/error.h"

/// Functions for the texts of messages and files: names, shapes, JSON strings.
namespace weft::checkpoint {

/// Throws a CheckpointError "[checkpoint] <where>: <what>".
[[noreturn]] void throw_corrupt(
    const std::string& where,
    const std::string& what);

/// Returns `text` in quotes for a message, shortened and with control bytes
/// escaped.
std::string in_quotes(std::string_view text);

/// Returns "[2, 3]".
std::string to_text(const std::vector<int64_t>& numbers);

/// Returns `text` as a JSON string with quotes.
/// Throws: mesh::UsageError if `text` is not UTF-8.
std::string json_string(std::string_view text);

bool is_utf8(std::string_view text);
/// Returns true if `text` has a byte below 32 or DEL.
bool has_control_bytes(std::string_view text);

/// Returns the number of elements of a tensor with `shape`, or -1 if a size is
/// negative or the number exceeds 2^62.
int64_t element_count(const std::vector<int64_t>& shape);

/// Returns true if a tensor may have this name. Otherwise sets `why` to the
/// reason.
bool is_tensor_name(std::string_view name, std::string& why);

} // namespace weft::checkpoint
