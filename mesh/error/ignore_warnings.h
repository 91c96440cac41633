#pragma once

#include <c10/util/Exception.h>

namespace weft::mesh {

/// Drops libtorch's warnings while it is the handler of a
/// c10::WarningUtils::WarningHandlerGuard.
class IgnoreWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

} // namespace weft::mesh
