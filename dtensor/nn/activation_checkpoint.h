#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace weft::dtensor {

// Note [Activation checkpointing]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Forward runs as usual, but what its nodes save for backward is dropped; only
// the inputs stay. The first node that asks for its tensors in backward has the
// forward pass run again, which saves the same tensors in the same order, up to
// the last that was saved. The graph is the first run's: hooks of parameters
// (ddp/'s among them) fire once. Collectives inside are called again, by all
// ranks alike. Random numbers are those of the first run. A checkpoint within
// another is right, but the outer one's recomputation keeps its inputs alive.
// Hooks for saved tensors that are set inside (tp::input_reshard() of the same
// module, called first) win: then nothing is recomputed. A result that is never
// taken through backward keeps its module alive.

/// The options of activation_checkpoint().
struct ActivationCheckpointOptions {
  /// Restores all random number generators for the recomputation. If false,
  /// only those of DTensors.
  bool preserve_rng_state = true;
  /// Stops the recomputation as soon as all saved tensors are restored.
  bool early_stop = true;
  /// Compares the sizes and dtypes of the saved tensors of both runs.
  bool determinism_check = true;
};

/// Runs `forward` on `inputs`, and again in each backward pass through its
/// results, instead of storing its activations. It must compute the same each
/// time and own everything else that it needs (copies of tensors are handles).
/// Without grad mode it only runs.
/// Collective: like `forward`, again in backward.
/// Throws: in backward, c10::Error if the second run saved other tensors.
/// Source: torch/utils/checkpoint.py, use_reentrant=False; Chen et al.,
/// Training Deep Nets with Sublinear Memory Cost (2016).
std::vector<at::Tensor> activation_checkpoint(
    const std::function<std::vector<at::Tensor>(
        const std::vector<at::Tensor>& inputs)>& forward,
    const std::vector<at::Tensor>& inputs,
    const ActivationCheckpointOptions& options = {});

/// Makes calls of `module` through dtensor::call() checkpointed.
void checkpoint_activations(
    torch::nn::Module& module,
    const ActivationCheckpointOptions& options = {});

/// Calls checkpoint_activations() for every submodule whose fully qualified
/// name `check` selects, and returns their names. Submodules of a selected
/// module are skipped.
/// Source: torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py.
std::vector<std::string> apply_activation_checkpointing(
    torch::nn::Module& module,
    const std::function<
        bool(const std::string& name, torch::nn::Module& module)>& check,
    const ActivationCheckpointOptions& options = {});

} // namespace weft::dtensor
