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
/// within a component, `**` matches any number of components; "" is the module
/// itself) and the style of the matching modules. A value is a style, or a plan
/// with names relative to the matching modules.
using ParallelizePlan = std::vector<std::pair<std::string, PlanValue>>;

/// A style or a plan.
class PlanValue {
 public:
  /// Creates a value of one style.
  PlanValue(ParallelStyle style) : style_(std::move(style)) {}
  /// Creates a value of a plan for the submodules.
  PlanValue(const ParallelizePlan& plan);
  PlanValue(std::initializer_list<std::pair<std::string, PlanValue>> plan);

  /// The style. Empty for a plan.
  const std::optional<ParallelStyle>& style() const { return style_; }
  /// Empty for a style.
  const ParallelizePlan& plan() const;

 private:
  std::optional<ParallelStyle> style_;
  std::shared_ptr<const ParallelizePlan> plan_;
};

/// The options of parallelize_module().
struct ParallelizeOptions {
  /// The rank along each mesh dim whose values the parameters of a plain model
  /// get. std::nullopt means each rank's own values, which must be equal;
  /// nothing is sent. A module built in DeferredInit gets its values later.
  std::optional<int64_t> src_data_rank = 0;
};

/// Applies a plan to `module` over a mesh of one or several dims. Parameters
/// and buffers that no style places become Replicate, so that the model is on
/// the mesh. A module built in dtensor::DeferredInit only records its
/// placements and gets its values from materialize(). Otherwise the parameters
/// of libtorch's Linear, Embedding and LayerNorm are replaced by those of
/// `src_data_rank`, distributed. The whole plan is checked first: a refused
/// plan changes and sends nothing.
/// Collective: all ranks of the mesh, unless everything is deferred.
/// Throws: c10::ValueError for a pattern without a match, a style that does not
/// fit its module, two styles that do the same to one module, or a parameter
/// that cannot be placed or that two modules share and place differently.
/// Source: torch/distributed/tensor/parallel/api.py.
void parallelize_module(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const ParallelizePlan& plan,
    const ParallelizeOptions& options = {});

/// Applies one style to the module itself.
void parallelize_module(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const ParallelStyle& style,
    const ParallelizeOptions& options = {});

} // namespace weft::tp
