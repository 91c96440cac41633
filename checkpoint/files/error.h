#pragma once

#include <c10/util/Exception.h>

namespace weft::checkpoint {

/// A checkpoint is damaged, incomplete or foreign; exit code 4.
class CheckpointError : public c10::Error {
  using c10::Error::Error;
};

} // namespace weft::checkpoint
