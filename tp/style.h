#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "dtensor/placement.h"
#include "mesh/device_mesh.h"

namespace weft::tp {

using dtensor::Partial;
using dtensor::Placement;
using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;

/// What tensor parallelism does to one module. Copies share the immutable
/// description.
/// Source: torch/distributed/tensor/parallel/style.py.
class ParallelStyle {
 public:
  /// `path` is the module's fully qualified name, for messages.
  using Apply = std::function<void(
      torch::nn::Module&,
      const mesh::DeviceMesh&,
      const std::string& path)>;
  explicit ParallelStyle(Apply apply) : apply_(std::move(apply)) {}

  void apply(
      torch::nn::Module& module,
      const mesh::DeviceMesh& mesh,
      const std::string& path) const {
    apply_(module, mesh, path);
  }

 private:
  Apply apply_;
};

/// Where a module takes its input from and leaves its output. Outputs stay
/// DTensors, so code between modules sees whole shapes.
struct LayoutOptions {
  std::optional<Placement> input_layouts = std::nullopt;
  std::optional<Placement> output_layouts = std::nullopt;
};

/// Cuts the weight by output features (Linear: Shard(0); Embedding: Shard(1)).
/// Default: input Replicate, output Shard(-1). A plain input tensor is taken to
/// lie as input_layouts say; a DTensor is redistributed.
ParallelStyle ColwiseParallel(LayoutOptions options = {});

/// Cuts the weight by input features (Linear: Shard(1), bias added after the
/// reduction; Embedding: Shard(0), by vocabulary).
/// Default: input Shard(-1) (Embedding: Replicate), output Replicate;
/// Shard(1) makes the reduction a reduce_scatter along the sequence.
ParallelStyle RowwiseParallel(LayoutOptions options = {});

/// Runs a norm (or any module without parameters to cut) on a part of the
/// sequence: input and output Shard(sequence_dim), parameters Replicate. The
/// parameters' gradients are summed over the mesh at the end of backward.
ParallelStyle SequenceParallel(int64_t sequence_dim = 1);

/// Redistributes a module's first input before its forward. Acts on modules
/// called through weft::dtensor::call().
struct PrepareModuleInputOptions {
  Placement input_layouts;
  Placement desired_input_layouts;
};
ParallelStyle PrepareModuleInput(PrepareModuleInputOptions options);

/// Redistributes a module's output after its forward. Acts on modules called
/// through weft::dtensor::call().
struct PrepareModuleOutputOptions {
  Placement output_layouts;
  Placement desired_output_layouts;
};
ParallelStyle PrepareModuleOutput(PrepareModuleOutputOptions options);

} // namespace weft::tp
