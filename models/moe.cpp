// Shape suffixes are explained in moe.h. L is the number of layers.

#include "models/moe.h"

#include "dtensor/fused/experts.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"

namespace weft::models {
namespace {

constexpr double kExpertInitStd = 0.02;

at::Tensor normal_weights(std::vector<int64_t> sizes) {
  auto weights = torch::empty(sizes);
  torch::nn::init::normal_(weights, 0.0, kExpertInitStd);
  return weights;
}

// Returns the dtype in which the router's softmax is computed.
at::ScalarType router_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// Reduces a Partial loss. Ranks that shard the sequences have one term each.
at::Tensor added_up(const at::Tensor& loss) {
  return loss.defined() && dtensor::is_dtensor(loss)
             ? dtensor::redistribute_to(
                   loss,
                   dtensor::spec_of(loss).without_partial(),
                   "auxiliary loss")
             : loss;
}

// Returns the load-balancing loss. See MoeForCausalLMImpl::auxiliary_loss().
at::Tensor balance_loss(const std::vector<Routing>& routings) {
  std::vector<at::Tensor> index;
  std::vector<at::Tensor> probabilities;
  for (const auto& routing : routings) {
    index.push_back(routing.index);
    probabilities.push_back(routing.probabilities.sum(-2));
  }
  const auto& last = routings.back();
  const int64_t T = last.index.size(-2);
  const int64_t k = last.index.size(-1);
  const int64_t E = last.logits.size(-1);
  // The counts of all layers are stacked, so that one reduction over the ranks
  // is enough. This is valid because the result is linear in the other factor.
  const auto counts_LBE = dtensor::expert_counts(torch::stack(index), E);
  const auto sums_LBE = torch::stack(probabilities);
  const auto shares_LBE =
      counts_LBE.to(sums_LBE.scalar_type()) / static_cast<double>(T * k);
  const auto scale =
      static_cast<double>(E) / static_cast<double>(T * std::ssize(routings));
  return (shares_LBE * sums_LBE).sum() * scale;
}

at::Tensor z_loss(const std::vector<Routing>& routings) {
  std::vector<at::Tensor> terms;
  for (const auto& routing : routings) {
    terms.push_back(torch::logsumexp(routing.logits, -1).square().sum());
  }
  const int64_t T = routings.back().logits.size(-2);
  return torch::stack(terms).sum() /
         static_cast<double>(T * std::ssize(routings));
}

} // namespace

MoeExpertsImpl::MoeExpertsImpl(const MoeConfig& config) {
  const int64_t E = config.num_experts;
  gate_up_proj = register_parameter(
      "gate_up_proj", normal_weights({E, 2 * config.ffn_dim, config.dim}));
  down_proj = register_parameter(
      "down_proj", normal_weights({E, config.dim, config.ffn_dim}));
}

at::Tensor MoeExpertsImpl::forward(
    const at::Tensor& x,
    const at::Tensor& index,
    const at::Tensor& weight) {
  return dtensor::experts(x, index, weight, gate_up_proj, down_proj);
}

MoeBlockImpl::MoeBlockImpl(const MoeConfig& config)
    : experts_per_token_(config.num_experts_per_tok) {
  gate = register_module(
      "gate",
      torch::nn::Linear(torch::nn::LinearOptions(config.dim, config.num_experts)
                            .bias(false)));
  torch::nn::init::normal_(gate->weight, 0.0, kExpertInitStd);
  experts = register_module("experts", MoeExperts(config));
}

Routing MoeBlockImpl::route(const at::Tensor& x) {
  Routing routing;
  const auto logits = gate(x);
  routing.logits = logits.to(router_dtype(logits.scalar_type()));
  routing.probabilities = torch::softmax(routing.logits, -1);
  at::Tensor likeliest;
  std::tie(likeliest, routing.index) =
      torch::topk(routing.probabilities, experts_per_token_, -1);
  routing.weight = likeliest / likeliest.sum(-1, /*keepdim=*/true);
  return routing;
}

at::Tensor MoeBlockImpl::forward(const at::Tensor& x) {
  const auto routing = route(x);
  routing_ = is_training() ? routing : Routing();
  return dtensor::call(experts, x, routing.index, routing.weight);
}

MoeForCausalLMImpl::MoeForCausalLMImpl(const MoeConfig& config)
    : LlamaForCausalLMImpl(
          config,
          [&] { return std::make_shared<MoeBlockImpl>(config); }),
      aux_coef_(config.router_aux_loss_coef),
      z_coef_(config.router_z_loss_coef) {}

std::vector<std::shared_ptr<MoeBlockImpl>> MoeForCausalLMImpl::moe_blocks()
    const {
  std::vector<std::shared_ptr<MoeBlockImpl>> blocks;
  for (const auto& layer : *model->layers) {
    blocks.push_back(std::dynamic_pointer_cast<MoeBlockImpl>(
        std::static_pointer_cast<LlamaDecoderLayerImpl>(layer)->mlp));
  }
  return blocks;
}

at::Tensor MoeForCausalLMImpl::auxiliary_loss() {
  std::vector<Routing> routings;
  for (const auto& block : moe_blocks()) {
    routings.push_back(block->last_routing());
  }
  at::Tensor loss;
  if (routings.empty() || !routings.front().logits.defined()) {
    return loss;
  }
  if (aux_coef_ != 0) {
    loss = balance_loss(routings) * aux_coef_;
  }
  if (z_coef_ != 0) {
    const auto z = z_loss(routings) * z_coef_;
    loss = loss.defined() ? loss + z : z;
  }
  return added_up(loss);
}

} // namespace weft::models
