#pragma once

#include <memory>
#include <string>

#include "ddp/batch_norm/sync_batch_norm.h"
#include "tests/ddp/harness/model.h"

namespace weft::test {

/// A transformer whose output projection has the embedding's weight, with batch
/// norm (whose count of batches is int64) and buffers. One buffer is int64 too:
/// it counts forwards, which change the output.
/// Source: torch/testing/_internal/common_fsdp.py.
struct TransformerWithSharedParams : HarnessModel {
  enum class Norm { kNone, kBatchNorm, kSyncBatchNorm };

  /// `channel`: for kSyncBatchNorm.
  explicit TransformerWithSharedParams(
      Norm norm = Norm::kNone,
      const std::shared_ptr<ddp::SyncBatchNormGroup>& channel = nullptr);

  at::Tensor forward(const Inputs& inputs) override;
  bool treats_rows_alone() const override { return !batch_norm; }
  dtensor::Placement placement_of(const std::string& name) const override;

  /// Ids, [B, T] of the source and the target.
  Inputs make_input(int64_t rank, int64_t step, int64_t rows) const override;
  at::Tensor make_loss(const Inputs& inputs, const at::Tensor& output) override;

  struct Projection : torch::nn::Module {
    explicit Projection(const at::Tensor& shared);
    at::Tensor weight, bias;
  };

  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::Transformer transformer{nullptr};
  std::shared_ptr<Projection> output_proj;
  torch::nn::BatchNorm1d batch_norm{nullptr};
  ddp::SyncBatchNorm sync_batch_norm{nullptr};
  at::Tensor vocab_bias, long_buffer;
};

} // namespace weft::test
