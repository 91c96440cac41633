#pragma once

#include <optional>
#include <string>

#include "checkpoint/manifest.h"

namespace weft::checkpoint {

/// The first rule of the format that `manifest` breaks, as a sentence that
/// names the tensor or file. `state` and `layout` are not looked at.
std::optional<std::string> broken_rule(const Manifest& manifest);

} // namespace weft::checkpoint
