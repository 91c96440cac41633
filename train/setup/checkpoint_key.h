#pragma once

#include <functional>
#include <string>

#include "config/recipe.h"

namespace weft::recipes {

/// The content of checkpoint.hmac_key_file, without a line feed at its end;
/// empty if the recipe names none. `warn` hears if other users may read it.
/// Throws: mesh::UsageError at the key if it cannot be read, or does not have
/// 16 to 4096 bytes.
std::string read_hmac_key(
    const Recipe& recipe,
    const std::function<void(const std::string&)>& warn = {});

} // namespace weft::recipes
