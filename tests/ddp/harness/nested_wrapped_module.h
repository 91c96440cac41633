#pragma once

#include <memory>
#include <set>
#include <string>

#include "ddp/distributed_data_parallel.h"
#include "tests/ddp/harness/model.h"

namespace weft::test {

/// Linear layers of which wrap() gives some a DistributedDataParallel of their
/// own, one inside another. What none of these has, or all, is for the one that
/// wraps the model. Unwrapped it is its twin.
/// Source: torch/testing/_internal/common_fsdp.py.
struct NestedWrappedModule : HarnessModel {
  using WrappedLinear = ddp::DistributedDataParallel<torch::nn::LinearImpl>;

  enum class Wrap { kSome, kAll };

  struct Block : torch::nn::Module {
    Block();
    at::Tensor forward(const at::Tensor& x);
    torch::nn::Linear inner{nullptr}, outer{nullptr};
    std::unique_ptr<WrappedLinear> wrapped_inner, wrapped_outer;
  };

  explicit NestedWrappedModule(Wrap wrap = Wrap::kSome);

  at::Tensor forward(const Inputs& inputs) override;
  void wrap(
      const mesh::DeviceMesh& dp,
      const ddp::DistributedDataParallelOptions& options) override;
  std::set<std::string> wrapped_names() const override;
  dtensor::Placement placement_of(const std::string& name) const override;

  Inputs make_input(int64_t rank, int64_t step, int64_t rows) const override;
  at::Tensor make_loss(const Inputs& inputs, const at::Tensor& output) override;

  torch::nn::Linear first{nullptr}, third{nullptr}, last{nullptr};
  std::shared_ptr<Block> block;

 private:
  Wrap wrap_;
  bool is_wrapped_ = false;
  std::unique_ptr<ddp::DistributedDataParallel<Block>> wrapped_block_;
  std::unique_ptr<WrappedLinear> wrapped_first_, wrapped_third_, wrapped_last_;
};

} // namespace weft::test
