#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace weft::tp {

struct LoraOptions {
  /// Columns of the small weights.
  int64_t rank = 8;
  /// What an adapter adds is scaled by alpha / rank.
  double alpha = 16.0;
  /// Probability that training drops an element of an adapter's input.
  double dropout = 0.0;
};

/// Gives every Linear that one of the patterns (as in a ParallelizePlan)
/// matches an adapter of low rank, and freezes all other parameters: what is
/// trained is `lora_A.weight` [rank, in], uniform, and `lora_B.weight`
/// [out, rank], zeros, registered below the Linear under PEFT's names. They
/// follow the placement of its weight and move nothing more between ranks in
/// forward. After parallelize_module(), before DistributedDataParallel and
/// materialize(). Returns the modules' names.
/// Collective: all ranks of the mesh, unless the module was built inside
/// DeferredInit.
/// Throws: c10::ValueError for a rank below 1, a dropout outside [0, 1), a
/// pattern that matches nothing, a module that is no Linear or has an adapter,
/// or a weight that lies on no mesh; before anything is changed.
/// Source: Hu et al., LoRA (2021); peft's LoraLayer.
std::vector<std::string> add_lora(
    torch::nn::Module& module,
    const std::vector<std::string>& patterns,
    const LoraOptions& options = {});

/// Adds what the adapters compute to the weights themselves and lets go of
/// them; all parameters can be trained again.
/// Collective: all ranks of the mesh.
void merge_lora(torch::nn::Module& module);

} // namespace weft::tp
