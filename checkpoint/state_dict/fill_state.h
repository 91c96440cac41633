#pragma once

#include <optional>
#include <string>

#include "checkpoint/state_dict/state_dict.h"

namespace weft::checkpoint {

struct FillOptions {
  /// The operation's name in error messages.
  std::string op;
  bool strict = true;
  bool from_rank0 = false;
  std::optional<mesh::DeviceMesh> mesh = std::nullopt;
};

/// Copies the values of `given` to the tensors of `targets`, each of which is a
/// DTensor on `mesh` or plain.
/// Collective: all ranks of `mesh`; blocks.
/// Throws: like set_model_state_dict().
IncompatibleKeys fill_state(
    const dtensor::StateDict& targets,
    const dtensor::StateDict& given,
    const FillOptions& options);

} // namespace weft::checkpoint
