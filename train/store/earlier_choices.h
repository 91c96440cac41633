#pragma once

#include "config/recipe.h"
#include "train/store/train_state.h"

namespace weft::train {

/// Returns the recipe with the open choices of the run's earlier processes, as
/// far as this host supports them, so that a resumed run computes the same
/// bits. These are the matmul library (`products: auto`; libtorch if oneDNN is
/// not available) and, on the same mesh, the link costs. `earlier` is the
/// layout of the checkpoint that the run resumes from. Does not communicate.
config::Recipe with_earlier_choices(
    config::Recipe recipe,
    const RunLayout& earlier);

} // namespace weft::train
