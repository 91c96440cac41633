#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/load/key_pattern.h"
#include "config/recipe.h"

namespace weft::recipes {

/// Checks what involves several keys and fills in what the recipe left open
/// (-1 in the mesh, kv_heads, micro_batch_size, output_dir), so that to_yaml()
/// shows the numbers that are used. Needs no data and no ranks.
/// Throws: mesh::UsageError at the offending key, with both numbers.
void validate(Recipe& recipe, int64_t world_size);

/// checkpoint.init_rename, taken apart.
/// Throws: mesh::UsageError at the key for a text that is no rule.
std::vector<checkpoint::RenameRule> init_rename_rules(const Recipe& recipe);

/// How many micro-batches a validated recipe adds up for one step.
int64_t accumulation_steps(const Recipe& recipe);

/// Checks the keys of `model` against each other, the data's type and the mesh,
/// which has no -1 any more, and fills in what they leave open.
/// Throws: mesh::UsageError at the offending key, with both numbers.
void resolve_model(Recipe& recipe);

} // namespace weft::recipes
