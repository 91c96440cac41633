#pragma once

#include <optional>
#include <string>

#include "checkpoint/format/manifest.h"

namespace weft::checkpoint {

/// The first rule of the format that `manifest` breaks, as a sentence that
/// names the tensor or file. `state` and `layout` are not looked at.
/// A foreign manifest has no hashes, and its headers need not be padded.
std::optional<std::string> find_violation(const Manifest& manifest);

/// Names the first header or piece that has no SHA-256.
std::optional<std::string> find_missing_sha256(const Manifest& manifest);

} // namespace weft::checkpoint
