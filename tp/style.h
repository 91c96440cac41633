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

/// A module that a style is applied to.
struct StyleTarget {
  torch::nn::Module& module;
  const mesh::DeviceMesh& mesh;
  /// The module's fully qualified name.
  const std::string& path;

  /// "module "mlp.up"", for messages.
  std::string name() const { return "module \"" + path + "\""; }
};

/// What a style is made of. A style of your own gives the same.
struct StyleFunctions {
  std::string name;
  /// Two styles that do the same to one module contradict each other.
  bool prepares_inputs = false;
  bool prepares_outputs = false;
  bool places_parameters = false;
  /// Where the module's own parameters are to lie, by name. Changes nothing.
  /// Throws: c10::ValueError if the style does not fit the module.
  std::function<std::map<std::string, Placements>(const StyleTarget&)> place;
  /// What remains once they lie there: layouts and hooks.
  std::function<void(const StyleTarget&)> apply;
};

/// What tensor parallelism does to one module. Copies share the immutable
/// description.
/// Source: torch/distributed/tensor/parallel/style.py.
class ParallelStyle {
 public:
  explicit ParallelStyle(StyleFunctions functions)
      : functions_(
            std::make_shared<const StyleFunctions>(std::move(functions))) {}

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

/// Where a module takes its input from and leaves its output.
struct LayoutOptions {
  /// How a plain input is taken to lie; a DTensor is redistributed.
  std::optional<Layout> input_layouts = std::nullopt;
  std::optional<Layout> output_layouts = std::nullopt;
  /// For meshes of several dims: Replicate() where a mesh dim is not to cut the
  /// weight, e.g. Placements{Replicate(), Shard(0)} over {"dp", "tp"}.
  std::optional<Layout> weight_layouts = std::nullopt;
  /// See Note [Local outputs].
  bool use_local_output = false;
};

/// Cuts the weight by output features (Linear: Shard(0); Embedding: Shard(1)),
/// over every mesh dim unless weight_layouts says otherwise.
/// Default: input Replicate, output Shard(-1); along a mesh dim that does not
/// cut the weight the output lies as the input.
ParallelStyle ColwiseParallel(LayoutOptions options = {});

/// Cuts the weight by input features (Linear: Shard(1), bias added after the
/// reduction; Embedding: Shard(0), by vocabulary).
/// Default: input Shard(-1) (Embedding: Replicate), output Replicate;
/// Shard(1) makes the reduction a reduce_scatter along the sequence.
ParallelStyle RowwiseParallel(LayoutOptions options = {});

struct SequenceParallelOptions {
  int64_t sequence_dim = 1;
  /// For meshes of several dims, instead of Shard(sequence_dim) along each:
  /// e.g. Placements{Shard(0), Shard(1)} over {"dp", "tp"}.
  std::optional<Layout> layouts = std::nullopt;
  /// See Note [Local outputs].
  bool use_local_output = false;
};
/// Runs a norm, a dropout or any module that works on each position alone on a
/// part of the sequence: input and output Shard(sequence_dim), parameters
/// Replicate. A plain input is this rank's part of the sequence, a DTensor is
/// redistributed. The parameters' gradients are summed over the mesh at the end
/// of backward. A LayerNorm, and a module whose weight goes into a norm op,
/// may be called anyhow; others through dtensor::call().
ParallelStyle SequenceParallel(SequenceParallelOptions options = {});
ParallelStyle SequenceParallel(int64_t sequence_dim);

struct NoParallelOptions {
  /// How a plain input is taken to lie.
  Layout input_layout = Replicate();
  Layout output_layout = Replicate();
  Layout desired_input_layout = Replicate();
  /// See Note [Local outputs].
  bool use_local_output = false;
};
/// Keeps a module whole on every rank of the mesh, in the world of DTensors:
/// parameters Replicate, the input brought to desired_input_layout, the output
/// to output_layout. A Linear, Embedding or LayerNorm may be called anyhow,
/// other modules through dtensor::call().
/// Source: torchtitan/distributed/tensor_parallel.py.
ParallelStyle NoParallel(NoParallelOptions options = {});

/// Places the tensors that a module is called with, by position among the
/// tensor arguments of dtensor::call() and by the names of its
/// dtensor::kwarg()s.
struct PrepareModuleInputOptions {
  /// How plain inputs are taken to lie: one a tensor, std::nullopt for what
  /// stays as it is. None: positional inputs stay as they are.
  Layouts input_layouts = {};
  /// Where they are brought, as many.
  Layouts desired_input_layouts = {};
  std::map<std::string, Layout> input_kwarg_layouts = {};
  /// The same names.
  std::map<std::string, Layout> desired_input_kwarg_layouts = {};
  /// forward() gets this rank's parts, plain tensors.
  bool use_local_output = false;
};
ParallelStyle PrepareModuleInput(PrepareModuleInputOptions options);

/// Places the tensors that a module returns through dtensor::call().
struct PrepareModuleOutputOptions {
  /// How plain outputs are taken to lie: one a tensor of the tuple or list.
  Layouts output_layouts = {};
  Layouts desired_output_layouts = {};
  /// See Note [Local outputs].
  bool use_local_output = false;
};
ParallelStyle PrepareModuleOutput(PrepareModuleOutputOptions options);

struct PrepareModuleInputOutputOptions {
  Layouts input_layouts = {};
  Layouts desired_input_layouts = {};
  std::map<std::string, Layout> input_kwarg_layouts = {};
  std::map<std::string, Layout> desired_input_kwarg_layouts = {};
  bool use_local_input = false;
  Layouts output_layouts = {};
  Layouts desired_output_layouts = {};
  bool use_local_output = false;
};
/// PrepareModuleInput and PrepareModuleOutput in one.
ParallelStyle PrepareModuleInputOutput(PrepareModuleInputOutputOptions options);

} // namespace weft::tp
