#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace weft::mesh {

/// The value as a pickle (protocol 2) of dicts, lists, str, int, float, bool
/// and None: whoever loads it calls nothing.
/// Throws: std::length_error for a string of 4 GiB.
std::string plain_pickle(const nlohmann::ordered_json& value);

} // namespace weft::mesh
