#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files/error.h"
#include "mesh/error/error.h"

/// What messages and files say: names, shapes, JSON strings.
namespace weft::checkpoint {

/// Throws a CheckpointError "[checkpoint] <where>: <what>".
[[noreturn]] void throw_corrupt(
    const std::string& where,
    const std::string& what);

/// `text` in quotes for a message: shortened, control bytes escaped.
std::string in_quotes(std::string_view text);

/// "[2, 3]".
std::string to_text(const std::vector<int64_t>& numbers);

/// `text` as a JSON string, quotes included.
/// Throws: mesh::UsageError if it is not UTF-8.
std::string json_string(std::string_view text);

bool is_utf8(std::string_view text);
/// No byte below 32, no DEL.
bool has_control_bytes(std::string_view text);

/// Elements of a tensor with `shape`; -1 if a size is negative or there would
/// be more than 2^62 of them.
int64_t element_count(const std::vector<int64_t>& shape);

/// Whether a tensor may have this name; otherwise `why` says why not.
bool is_tensor_name(std::string_view name, std::string& why);

} // namespace weft::checkpoint
