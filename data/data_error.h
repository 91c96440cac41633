#pragma once

#include <cstdint>
#include <string>

#include "mesh/error/error.h"

namespace weft::data {

/// Thrown if data cannot be read or has changed since the run started.
class DataError : public mesh::UsageError {
  using mesh::UsageError::UsageError;
};

/// Throws: DataError "data file "<path>", offset <offset>: <reason>".
[[noreturn]] void
refuse_data(const std::string& path, int64_t offset, const std::string& reason);

} // namespace weft::data
