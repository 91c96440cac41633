#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace weft::tp {

/// The options of add_lora().
struct LoraOptions {
  /// The rank of the updates.
  int64_t rank = 8;
  /// The updates are scaled by alpha / rank.
  double alpha = 16.0;
  /// The probability of dropping an element of an adapter's input in training.
  double dropout = 0.0;
};

/// Adds a low-rank adapter to every Linear that one of the patterns (as in a
/// ParallelizePlan) matches, and freezes all other parameters. The trained
/// parameters are `lora_A.weight` [rank, in], uniform, and `lora_B.weight`
/// [out, rank], zeros, registered below the Linear under PEFT's names. They
/// follow the placement of its weight and add no communication in forward. Call
/// it after parallelize_module() and before DistributedDataParallel and
/// materialize(). Returns the modules' names.
/// Collective: all ranks of the mesh, unless the module was built in
/// DeferredInit.
/// Throws: c10::ValueError, before anything changes, for a rank below 1, a
/// dropout outside [0, 1), a pattern without a match, a module that is not a
/// Linear or has an adapter, or a weight that is on no mesh.
/// Source: Hu et al., LoRA (2021); peft's LoraLayer.
std::vector<std::string> add_lora(
    torch::nn::Module& module,
    const std::vector<std::string>& patterns,
    const LoraOptions& options = {});

/// Adds the adapters' updates to the weights, removes the adapters, and makes
/// all parameters trainable.
/// Collective: all ranks of the mesh.
void merge_lora(torch::nn::Module& module);

} // namespace weft::tp
