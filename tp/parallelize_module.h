#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "mesh/device_mesh.h"
#include "tp/style.h"

namespace weft::tp {

/// Module names or globs ("model.layers.*.self_attn.q_proj"; `*` and `?` match
/// within one component, `**` is any number of them) and what to do to the
/// modules they match; "" is the module itself.
using ParallelizePlan = std::vector<std::pair<std::string, ParallelStyle>>;

/// Applies a plan to `module` over a 1-D mesh. Parameters and buffers that no
/// style places become Replicate, so that the whole model lives on the mesh.
/// A module built inside dtensor::DeferredInit only notes its placements and
/// gets its values from materialize(); outside it, libtorch's own Linear,
/// Embedding and LayerNorm have their parameters replaced by rank 0's,
/// distributed.
/// Collective: all ranks of the mesh, unless everything is deferred.
/// Throws: c10::ValueError for a mesh that is not 1-D, a pattern that matches
/// no module, or a style that does not fit the module it meets.
/// Source: torch/distributed/tensor/parallel/api.py.
void parallelize_module(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const ParallelizePlan& plan);

/// Whether `path` matches `pattern` component by component.
bool matches(std::string_view pattern, std::string_view path);

} // namespace weft::tp
