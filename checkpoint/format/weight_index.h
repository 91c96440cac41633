#pragma once

#include <map>
#include <string>
#include <string_view>

namespace weft::checkpoint {

/// The file that says which of a Hugging Face folder's files has which tensor.
constexpr const char* kWeightIndexName = "model.safetensors.index.json";

/// Its content, {"metadata": {...}, "weight_map": {"<tensor>": "<file>", ...}}:
/// files by tensor, whose names lead nowhere else.
/// Throws: CheckpointError naming `source`, key and byte.
std::map<std::string, std::string> parse_weight_index(
    std::string_view text,
    const std::string& source);

} // namespace weft::checkpoint
