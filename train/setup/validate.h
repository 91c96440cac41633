#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/load/key_pattern.h"
#include "config/recipe.h"

namespace weft::train {

/// The parts into which a global batch is divided: one per rank with other
/// samples, or one per lane of an elastic run.
struct BatchParts {
  /// The recipe keys whose values give the count, for messages.
  std::string key;
  int64_t count = 1;
};

/// Checks the constraints between keys and fills in the values that the recipe
/// leaves open (-1 in the mesh, kv_heads, micro_batch_size, output_dir), so
/// that to_yaml() shows the numbers that are used. Needs no data and no ranks.
/// `parts` are those of a global batch; without them the mesh determines them.
/// Throws: mesh::UsageError at the offending key, with both numbers, if a
/// constraint is violated.
void validate(
    config::Recipe& recipe,
    int64_t world_size,
    const std::optional<BatchParts>& parts = std::nullopt);

/// Parses checkpoint.init_rename.
/// Throws: mesh::UsageError at the key if a text is not a rule.
std::vector<checkpoint::RenameRule> init_rename_rules(
    const config::Recipe& recipe);

/// A global batch that is divided into `parts` equal parts is a multiple of
/// `samples`. `factor` is text for a message, such as
/// " x train.micro_batch_size=2 = 8". It is empty if that key is not set.
struct BatchUnit {
  int64_t samples = 1;
  std::string factor = {};
};
BatchUnit batch_unit(const config::TrainConfig& train, int64_t parts);

/// Returns the number of micro-batches that each rank accumulates in one step
/// of a validated recipe.
int64_t accumulation_steps(const config::Recipe& recipe);

/// Checks the keys of `model` against each other, the data's type and the mesh,
/// in which no -1 may be left, and fills in the values that are not set.
/// Throws: mesh::UsageError at the offending key, with both numbers, if a
/// constraint is violated.
void resolve_model(config::Recipe& recipe);

} // namespace weft::train
