#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include "models/llama.h"

namespace weft::recipes {

// Shape suffixes: see llama.h; E experts, k experts a token.

/// ffn_dim is that of each expert.
struct MoeConfig : LlamaConfig {
  int64_t num_experts = 8;
  int64_t num_experts_per_tok = 2;
  /// Weight of the balance of experts in the loss; 0: none.
  double router_aux_loss_coef = 0.01;
  /// Weight of the size of the router's logits in the loss; 0: none.
  double router_z_loss_coef = 0;
};

/// What a router has decided on tokens.
struct Routing {
  /// Shapes: [B, T, E].
  at::Tensor logits;
  at::Tensor probabilities;
  /// Shapes: [B, T, k]; weights add up to 1.
  at::Tensor index;
  at::Tensor weight;
};

/// SwiGLU experts, their weights stacked; nobody multiplies with those of an
/// expert that no token goes to.
class MoeExpertsImpl : public torch::nn::Module {
 public:
  explicit MoeExpertsImpl(const MoeConfig& config);
  /// Shapes: x [B, T, D], index and weight [B, T, k] to [B, T, D].
  at::Tensor forward(
      const at::Tensor& x,
      const at::Tensor& index,
      const at::Tensor& weight);

  /// Shapes: [E, 2 F, D], the gate's rows first, and [E, D, F].
  at::Tensor gate_up_proj;
  at::Tensor down_proj;
};
TORCH_MODULE(MoeExperts);

/// A router and its experts, as Mixtral has them: probabilities over all
/// experts, in float; each token goes to the k likeliest, whose probabilities
/// are scaled to add up to 1. No token is dropped.
/// Source: Jiang et al., Mixtral of Experts (2024).
class MoeBlockImpl : public FeedForward {
 public:
  explicit MoeBlockImpl(const MoeConfig& config);
  at::Tensor forward(const at::Tensor& x) override;
  Routing route(const at::Tensor& x);
  /// Of the last forward() in training; undefined tensors otherwise.
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

  /// The layers' feed-forwards.
  std::vector<std::shared_ptr<MoeBlockImpl>> moe_blocks() const;

 private:
  double aux_coef_;
  double z_coef_;
};
TORCH_MODULE(MoeForCausalLM);

} // namespace weft::recipes
