#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "dtensor/spec/placement.h"
#include "mesh/device_mesh.h"
#include "tp/layout.h"

namespace weft::tp {

/// The module to which a style is applied.
struct StyleTarget {
  /// The module.
  torch::nn::Module& module;
  /// The mesh of the style.
  const mesh::DeviceMesh& mesh;
  /// The module's fully qualified name.
  const std::string& path;

  /// Returns "module "mlp.up"", for messages.
  std::string name() const { return "module \"" + path + "\""; }
};

/// The functions of a style, which a custom style also provides.
struct StyleFunctions {
  /// The name in messages.
  std::string name;
  /// The effects of the style. Two styles with the same effect on one module
  /// are an error.
  bool prepares_inputs = false;
  /// See prepares_inputs.
  bool prepares_outputs = false;
  /// See prepares_inputs.
  bool places_parameters = false;
  /// Returns the placements of the module's own parameters by name. Changes
  /// nothing.
  /// Throws: c10::ValueError if the style does not fit the module.
  std::function<std::map<std::string, Placements>(const StyleTarget&)> place;
  /// Sets layouts and hooks after the parameters are placed.
  std::function<void(const StyleTarget&)> apply;
};

/// How tensor parallelism changes one module. Copies share the immutable
/// description.
/// Source: torch/distributed/tensor/parallel/style.py.
class ParallelStyle {
 public:
  /// Creates a custom style.
  explicit ParallelStyle(StyleFunctions functions)
      : functions_(
            std::make_shared<const StyleFunctions>(std::move(functions))) {}

  /// The functions of the style.
  const StyleFunctions* operator->() const { return functions_.get(); }

 private:
  std::shared_ptr<const StyleFunctions> functions_;
};

// Note [Local outputs]
// ~~~~~~~~~~~~~~~~~~~~
// PyTorch's styles give plain local tensors by default where a module's output
// is likely to be used by code that knows of ranks (heads / tp_size). Here
// model code is written for one rank, so outputs stay DTensors with whole
// shapes, for every style, unless use_local_output asks for this rank's part.
// It acts on modules called through dtensor::call(), as all hooks do.

/// The placements of a module's input and output.
struct LayoutOptions {
  /// The assumed placement of a plain input. A DTensor is redistributed.
  std::optional<Layout> input_layouts = std::nullopt;
  /// The placement to which the output is redistributed.
  std::optional<Layout> output_layouts = std::nullopt;
  /// For meshes of several dims: Replicate() for a mesh dim that does not shard
  /// the weight, e.g. Placements{Replicate(), Shard(0)} over {"dp", "tp"}.
  std::optional<Layout> weight_layouts = std::nullopt;
  /// See Note [Local outputs].
  bool use_local_output = false;
};

/// Shards the weight by output features (Linear: Shard(0); Embedding:
/// Shard(1)), over every mesh dim unless weight_layouts is set. The default
/// input is Replicate, the default output Shard(-1); along a mesh dim that does
/// not shard the weight the output has the placement of the input.
ParallelStyle ColwiseParallel(LayoutOptions options = {});

/// Shards the weight by input features (Linear: Shard(1), with the bias added
/// after the reduction; Embedding: Shard(0), by vocabulary). The default input
/// is Shard(-1) (Embedding: Replicate), the default output Replicate. An output
/// of Shard(1) makes the reduction a reduce_scatter along the sequence.
ParallelStyle RowwiseParallel(LayoutOptions options = {});

/// The options of SequenceParallel().
struct SequenceParallelOptions {
  /// The tensor dim that is the sequence.
  int64_t sequence_dim = 1;
  /// For meshes of several dims, instead of Shard(sequence_dim) along each:
  /// e.g. Placements{Shard(0), Shard(1)} over {"dp", "tp"}.
  std::optional<Layout> layouts = std::nullopt;
  /// See Note [Local outputs].
  bool use_local_output = false;
};
/// Runs a norm, a dropout or any module that processes positions separately on
/// a part of the sequence: input and output are Shard(sequence_dim), parameters
/// Replicate. A plain input is this rank's part of the sequence; a DTensor is
/// redistributed. The parameters' gradients are summed over the mesh at the end
/// of backward. A LayerNorm, and a module whose weight is used in a norm op,
/// may be called directly; other modules through dtensor::call().
ParallelStyle SequenceParallel(SequenceParallelOptions options = {});
ParallelStyle SequenceParallel(int64_t sequence_dim);

/// The options of NoParallel().
struct NoParallelOptions {
  /// The assumed placement of a plain input.
  Layout input_layout = Replicate();
  /// The placement to which the output is redistributed.
  Layout output_layout = Replicate();
  /// The placement to which the input is redistributed.
  Layout desired_input_layout = Replicate();
  /// See Note [Local outputs].
  bool use_local_output = false;
};
/// Replicates a module on every rank of the mesh, with DTensors: parameters are
/// Replicate, the input is redistributed to desired_input_layout, the output to
/// output_layout. A Linear, Embedding or LayerNorm may be called directly,
/// other modules through dtensor::call().
/// Source: torchtitan/distributed/tensor_parallel.py.
ParallelStyle NoParallel(NoParallelOptions options = {});

/// Places the arguments of a module, by position among the tensor arguments of
/// dtensor::call() and by the names of its dtensor::kwarg()s.
struct PrepareModuleInputOptions {
  /// The assumed placements of plain inputs: one per tensor, std::nullopt for
  /// those that stay as they are. Empty means that positional inputs stay as
  /// they are.
  Layouts input_layouts = {};
  /// The placements to which they are redistributed, one for each.
  Layouts desired_input_layouts = {};
  /// The assumed placements of plain named arguments.
  std::map<std::string, Layout> input_kwarg_layouts = {};
  /// The placements of the same named arguments.
  std::map<std::string, Layout> desired_input_kwarg_layouts = {};
  /// Passes local tensors to forward().
  bool use_local_output = false;
};
/// Redistributes the arguments of a module before forward().
ParallelStyle PrepareModuleInput(PrepareModuleInputOptions options);

/// Places the tensors that a module returns from dtensor::call().
struct PrepareModuleOutputOptions {
  /// The assumed placements of plain outputs: one per tensor of the tuple or
  /// list.
  Layouts output_layouts = {};
  /// The placements to which outputs are redistributed, one for each.
  Layouts desired_output_layouts = {};
  /// See Note [Local outputs].
  bool use_local_output = false;
};
/// Redistributes the results of a module after forward().
ParallelStyle PrepareModuleOutput(PrepareModuleOutputOptions options);

/// The options of PrepareModuleInputOutput().
struct PrepareModuleInputOutputOptions {
  /// See PrepareModuleInputOptions.
  Layouts input_layouts = {};
  /// See PrepareModuleInputOptions.
  Layouts desired_input_layouts = {};
  /// See PrepareModuleInputOptions.
  std::map<std::string, Layout> input_kwarg_layouts = {};
  /// See PrepareModuleInputOptions.
  std::map<std::string, Layout> desired_input_kwarg_layouts = {};
  /// PrepareModuleInputOptions::use_local_output.
  bool use_local_input = false;
  /// See PrepareModuleOutputOptions.
  Layouts output_layouts = {};
  /// See PrepareModuleOutputOptions.
  Layouts desired_output_layouts = {};
  /// See PrepareModuleOutputOptions.
  bool use_local_output = false;
};
/// PrepareModuleInput and PrepareModuleOutput in one style.
ParallelStyle PrepareModuleInputOutput(PrepareModuleInputOutputOptions options);

} // namespace weft::tp
