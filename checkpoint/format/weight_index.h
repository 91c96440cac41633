#pragma once

#include <map>
#include <string>
#include <string_view>

namespace weft::checkpoint {

/// The file of a Hugging Face folder that maps each tensor to its file.
constexpr const char* kWeightIndexName = "model.safetensors.index.json";

/// Parses the index, {"metadata": {...}, "weight_map": {"<tensor>": "<file>",
/// ...}}, and returns the files by tensor. File names cannot lead out of the
/// folder.
/// Throws: CheckpointError naming `source`, key and byte if the index is
/// invalid.
std::map<std::string, std::string> parse_weight_index(
    std::string_view text,
    const std::string& source);

} // namespace weft::checkpoint
