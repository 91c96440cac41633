#pragma once

#include <functional>
#include <string>

#include "config/recipe.h"

namespace weft::train {

/// Returns the content of checkpoint.hmac_key_file without a trailing line
/// feed. Empty if the recipe has no such file. Calls `warn` if other users can
/// read the file.
/// Throws: mesh::UsageError at the key if the file cannot be read, or if it
/// does not have 16 to 4096 bytes.
std::string read_hmac_key(
    const config::Recipe& recipe,
    const std::function<void(const std::string&)>& warn = {});

} // namespace weft::train
