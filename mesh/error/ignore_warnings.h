#pragma once

#include <c10/util/Exception.h>

namespace weft::mesh {

/// Returns the result of `body` and suppresses libtorch's warnings on this
/// thread meanwhile.
template <class Body>
auto without_warnings(const Body& body) {
  struct Dropped final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Dropped dropped;
  const c10::WarningUtils::WarningHandlerGuard guard(&dropped);
  return body();
}

} // namespace weft::mesh
