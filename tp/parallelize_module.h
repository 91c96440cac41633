#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "mesh/device_mesh.h"
#include "tp/style.h"

namespace weft::tp {

class PlanValue;

/// Module names or globs ("model.layers.*.self_attn.q_proj"; `*` and `?` match
/// within one component, `**` is any number of them) and what to do to the
/// modules they match; "" is the module itself. A value is a style, or a plan
/// whose names start at the modules that match.
using ParallelizePlan = std::vector<std::pair<std::string, PlanValue>>;

/// A style or a plan.
class PlanValue {
 public:
  PlanValue(ParallelStyle style) : style_(std::move(style)) {}
  PlanValue(const ParallelizePlan& plan);
  PlanValue(std::initializer_list<std::pair<std::string, PlanValue>> plan);

  const std::optional<ParallelStyle>& style() const { return style_; }
  /// Empty for a style.
  const ParallelizePlan& plan() const;

 private:
  std::optional<ParallelStyle> style_;
  std::shared_ptr<const ParallelizePlan> plan_;
};

struct ParallelizeOptions {
  /// The rank along each mesh dim whose values a plain model's parameters get;
  /// std::nullopt: each rank's own, which is to hold the same, and nothing is
  /// sent. Values of a module built inside DeferredInit come later.
  std::optional<int64_t> src_data_rank = 0;
};

/// Applies a plan to `module` over a mesh of one or several dims. Parameters
/// and buffers that no style places become Replicate, so that the whole model
/// lives on the mesh. A module built inside dtensor::DeferredInit only notes
/// its placements and gets its values from materialize(); outside it,
/// libtorch's own Linear, Embedding and LayerNorm have their parameters
/// replaced by those of `src_data_rank`, distributed. All of the plan is
/// checked first: a plan that is refused has changed nothing and sent nothing.
/// Collective: all ranks of the mesh, unless everything is deferred.
/// Throws: c10::ValueError for a pattern that matches no module, a style that
/// does not fit the module it meets, two styles that do the same to one module,
/// a parameter that cannot be placed or that two modules share and place
/// differently.
/// Source: torch/distributed/tensor/parallel/api.py.
void parallelize_module(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const ParallelizePlan& plan,
    const ParallelizeOptions& options = {});

/// The same with a style for the module itself.
void parallelize_module(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const ParallelStyle& style,
    const ParallelizeOptions& options = {});

} // namespace weft::tp
