#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "checkpoint/files/folder.h"

namespace weft::hf {

/// Returns the content of a file of a Hugging Face folder other than weights.
/// Throws: mesh::UsageError naming the file, if it does not exist, is not a
/// regular file, or is too large for its kind.
std::string read_small_file(
    const checkpoint::Folder& folder,
    const std::string& name,
    int64_t max_bytes);

/// Parses one object of at most 32 levels, without duplicate keys.
/// Throws: mesh::UsageError naming `source` and the byte.
nlohmann::ordered_json parse_json_object(
    std::string_view text,
    const std::string& source);

} // namespace weft::hf
