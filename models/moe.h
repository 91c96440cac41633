#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include "models/llama.h"

namespace weft::models {

// Shape suffixes: see llama.h; E experts, k experts a token.

/// The config of a mixture-of-experts Llama. ffn_dim is the width of each
/// expert.
struct MoeConfig : LlamaConfig {
  int64_t num_experts = 8;
  int64_t num_experts_per_tok = 2;
  /// The weight of the load-balancing loss of experts. 0 disables it.
  double router_aux_loss_coef = 0.01;
  /// The weight of the router's z-loss, which limits the size of its logits. 0
  /// disables it.
  double router_z_loss_coef = 0;
};

/// The decisions of a router for a batch of tokens.
struct Routing {
  /// Shapes: [B, T, E].
  at::Tensor logits;
  at::Tensor probabilities;
  /// Shapes: [B, T, k]. The weights add up to 1.
  at::Tensor index;
  at::Tensor weight;
};

/// SwiGLU experts with stacked weights. An expert to which no token is routed
/// computes nothing.
class MoeExpertsImpl : public torch::nn::Module {
 public:
  explicit MoeExpertsImpl(const MoeConfig& config);
  /// Shapes: x [B, T, D], index and weight [B, T, k] to [B, T, D].
  at::Tensor forward(
      const at::Tensor& x,
      const at::Tensor& index,
      const at::Tensor& weight);

  /// The stacked weights.
  /// Shapes: [E, 2 F, D] with the rows of gate_proj first, and [E, D, F].
  at::Tensor gate_up_proj;
  at::Tensor down_proj;
};
TORCH_MODULE(MoeExperts);

/// A router and its experts, as in Mixtral. The router computes probabilities
/// over all experts in float32. Each token is routed to its k most likely
/// experts, whose probabilities are normalized to add up to 1. No token is
/// dropped.
/// Source: Jiang et al., Mixtral of Experts (2024).
class MoeBlockImpl : public FeedForward {
 public:
  explicit MoeBlockImpl(const MoeConfig& config);
  at::Tensor forward(const at::Tensor& x) override;
  Routing route(const at::Tensor& x);
  /// The routing of the last forward() in training. Outside of training its
  /// tensors are undefined.
  const Routing& last_routing() const { return routing_; }

  torch::nn::Linear gate{nullptr};
  MoeExperts experts{nullptr};

 private:
  int64_t experts_per_token_;
  Routing routing_;
};
TORCH_MODULE(MoeBlock);

/// A Llama whose feed-forwards are mixtures of experts, with the parameter
/// names of transformers' MixtralForCausalLM.
class MoeForCausalLMImpl : public LlamaForCausalLMImpl {
 public:
  explicit MoeForCausalLMImpl(const MoeConfig& config);

  /// Averaged over layers and summed over samples, for each sample and layer
  ///   router_aux_loss_coef * E * sum over experts of (share of the sample's
  ///     assignments * mean of its probabilities), 1 where balanced, and
  ///   router_z_loss_coef * mean over its tokens of logsumexp(logits)^2.
  /// Undefined after forward() outside training.
  /// Collective: all ranks of the parameters' mesh where sequences are cut.
  /// Source: Fedus et al., Switch Transformers (2021); Zoph et al., ST-MoE
  /// (2022).
  at::Tensor auxiliary_loss() override;

  /// Returns the feed-forwards of the layers.
  std::vector<std::shared_ptr<MoeBlockImpl>> moe_blocks() const;

 private:
  double aux_coef_;
  double z_coef_;
};
TORCH_MODULE(MoeForCausalLM);

} // namespace weft::models
