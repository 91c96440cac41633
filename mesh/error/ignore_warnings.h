#pragma once

#include <c10/util/Exception.h>

namespace weft::mesh {

/// Returns what `body` does, and drops the warnings that libtorch gives
/// meanwhile on this thread.
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
