#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace weft::mesh {

/// Returns the value as a pickle (protocol 2) of dict, list, str, int, float,
/// bool and None. Loading it calls no code.
/// Throws: std::length_error for a string of 4 GiB or more.
std::string plain_pickle(const nlohmann::ordered_json& value);

} // namespace weft::mesh
