#include "tests/ddp/harness/transformer.h"

namespace weft::test {
namespace {

constexpr int64_t kHarnessVocabulary = 23;
constexpr int64_t kHarnessDim = 16;
constexpr int64_t kSourceLength = 6;
constexpr int64_t kTargetLength = 4;

at::Tensor
harness_ids(int64_t rank, int64_t step, int64_t rows, int64_t length) {
  return ((at::arange(rows * length) * 7 + 3 * rank + 5 * step) %
          kHarnessVocabulary)
      .view({rows, length});
}

} // namespace

TransformerWithSharedParams::Projection::Projection(const at::Tensor& shared)
    : weight(register_parameter("weight", shared)),
      bias(register_parameter("bias", at::zeros({shared.size(0)}))) {}

TransformerWithSharedParams::TransformerWithSharedParams(
    Norm norm,
    const std::shared_ptr<ddp::SyncBatchNormGroup>& channel) {
  embed_tokens = register_module(
      "embed_tokens", torch::nn::Embedding(kHarnessVocabulary, kHarnessDim));
  transformer = register_module(
      "transformer",
      torch::nn::Transformer(torch::nn::TransformerOptions(kHarnessDim, 4, 2, 2)
                                 .dim_feedforward(8)
                                 .dropout(0)));
  output_proj = register_module(
      "output_proj", std::make_shared<Projection>(embed_tokens->weight));
  vocab_bias = register_buffer("vocab_bias", at::ones({kHarnessDim}));
  long_buffer =
      register_buffer("long_buffer", at::zeros({kHarnessDim}, at::kLong));
  const torch::nn::BatchNormOptions options(kHarnessDim);
  if (norm == Norm::kBatchNorm) {
    batch_norm = register_module("bn", torch::nn::BatchNorm1d(options));
  } else if (norm == Norm::kSyncBatchNorm) {
    sync_batch_norm =
        register_module("bn", ddp::SyncBatchNorm(options, channel));
  }
}

at::Tensor TransformerWithSharedParams::forward(const Inputs& inputs) {
  const auto source_BTD = embed_tokens(inputs.at(0)) + vocab_bias +
                          long_buffer.to(at::kDouble) * 0.01;
  auto target_BTD = embed_tokens(inputs.at(1));
  if (is_training()) {
    long_buffer.add_(1);
  }
  const auto target_BDT = target_BTD.transpose(1, 2);
  if (batch_norm) {
    target_BTD = batch_norm(target_BDT).transpose(1, 2);
  } else if (sync_batch_norm) {
    target_BTD = sync_batch_norm(target_BDT).transpose(1, 2);
  }
  const auto hidden_TBD =
      transformer(source_BTD.transpose(0, 1), target_BTD.transpose(0, 1));
  return at::linear(
      hidden_TBD.transpose(0, 1), output_proj->weight, output_proj->bias);
}

dtensor::Placement TransformerWithSharedParams::placement_of(
    const std::string& name) const {
  // The feed-forward pairs.
  if (name.find(".linear1.") != std::string::npos) {
    return dtensor::Shard(0);
  }
  if (name.ends_with(".linear2.weight")) {
    return dtensor::Shard(1);
  }
  return dtensor::Replicate();
}

HarnessModel::Inputs TransformerWithSharedParams::make_input(
    int64_t rank,
    int64_t step,
    int64_t rows) const {
  return {
      harness_ids(rank, step, rows, kSourceLength),
      harness_ids(rank + 1, step, rows, kTargetLength)};
}

at::Tensor TransformerWithSharedParams::make_loss(
    const Inputs& inputs,
    const at::Tensor& output) {
  return at::cross_entropy_loss(
      output.flatten(0, 1), inputs.at(1).flatten(), {}, at::Reduction::Mean);
}

} // namespace weft::test
