#pragma once

#include <cstdint>
#include <optional>

#include "config/recipe.h"

namespace weft::train {

/// Returns the recipe that one of `groups` replica groups of `group_size` ranks
/// trains: that of one replica, validated, which computes any micro-batch of
/// the global batch. Without elastic.batch it is the validated recipe itself.
/// `groups` is empty if weftrun started no groups.
/// Throws: mesh::UsageError at a key that does not fit the groups, or cannot be
/// combined with groups that come and go; the exceptions of validate().
config::Recipe recipe_of_group(
    config::Recipe recipe,
    int64_t group_size,
    std::optional<int64_t> groups);

} // namespace weft::train
