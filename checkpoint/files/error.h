#pragma once

#include <c10/util/Exception.h>

namespace weft::checkpoint {

/// Thrown if a checkpoint is damaged, incomplete or not a checkpoint of Weft.
/// Exit code 4.
class CheckpointError : public c10::Error {
  using c10::Error::Error;
};

} // namespace weft::checkpoint
