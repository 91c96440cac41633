#pragma once

#include <string>
#include <vector>

#include "mesh/communicator.h"
#include "mesh/device_mesh.h"
#include "mesh/ledger.h"

namespace weft::recipes {

/// What this rank has sent over "tp" since the last call.
inline std::vector<mesh::LedgerEntry> take_entries(
    const mesh::DeviceMesh& mesh) {
  auto& ledger = mesh.group("tp").ledger();
  auto entries = ledger.entries();
  ledger.reset();
  return entries;
}

} // namespace weft::recipes
