#pragma once

#include <string>

namespace weft::mesh {

/// Why a group can no longer be used; without a reason, it can.
struct GroupFailure {
  std::string reason;
  /// The ranks called different things: a DisagreementError.
  bool is_disagreement = false;
  bool is_timeout = false;
};

} // namespace weft::mesh
