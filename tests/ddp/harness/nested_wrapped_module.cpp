#include "tests/ddp/harness/nested_wrapped_module.h"

namespace weft::test {
namespace {

using WrappedLinear = NestedWrappedModule::WrappedLinear;

at::Tensor call_wrapped(
    const std::unique_ptr<WrappedLinear>& wrapped,
    torch::nn::Linear& linear,
    const at::Tensor& x) {
  return wrapped ? (*wrapped)(x) : linear(x);
}

} // namespace

NestedWrappedModule::Block::Block()
    : inner(register_module("inner", torch::nn::Linear(4, 16))),
      outer(register_module("outer", torch::nn::Linear(16, 16))) {}

at::Tensor NestedWrappedModule::Block::forward(const at::Tensor& x) {
  return call_wrapped(
      wrapped_outer, outer, call_wrapped(wrapped_inner, inner, x));
}

NestedWrappedModule::NestedWrappedModule(Wrap wrap) : wrap_(wrap) {
  first = register_module("first", torch::nn::Linear(8, 4));
  block = register_module("block", std::make_shared<Block>());
  third = register_module("third", torch::nn::Linear(16, 4));
  last = register_module("last", torch::nn::Linear(4, 8));
}

at::Tensor NestedWrappedModule::forward(const Inputs& inputs) {
  auto x = call_wrapped(wrapped_first_, first, inputs.at(0));
  x = wrapped_block_ ? (*wrapped_block_)(x) : block->forward(x);
  x = call_wrapped(wrapped_third_, third, x);
  return call_wrapped(wrapped_last_, last, x);
}

void NestedWrappedModule::wrap(
    const mesh::DeviceMesh& dp,
    const ddp::DistributedDataParallelOptions& options) {
  is_wrapped_ = true;
  const auto linear = [&](torch::nn::Linear& its) {
    return std::make_unique<WrappedLinear>(its, dp, options);
  };
  block->wrapped_inner = linear(block->inner);
  if (wrap_ == Wrap::kAll) {
    // What is left of the block has no parameters to wrap.
    block->wrapped_outer = linear(block->outer);
    wrapped_first_ = linear(first);
    wrapped_last_ = linear(last);
  } else {
    auto without_inner = options;
    without_inner.params_and_buffers_to_ignore = {"inner.weight", "inner.bias"};
    wrapped_block_ = std::make_unique<ddp::DistributedDataParallel<Block>>(
        block, dp, without_inner);
  }
  wrapped_third_ = linear(third);
}

std::set<std::string> NestedWrappedModule::wrapped_names() const {
  std::set<std::string> names;
  for (const auto& item : named_parameters()) {
    const auto& name = item.key();
    if (is_wrapped_ && (wrap_ == Wrap::kAll || name.starts_with("block.") ||
                        name.starts_with("third."))) {
      names.insert(name);
    }
  }
  return names;
}

dtensor::Placement NestedWrappedModule::placement_of(
    const std::string& name) const {
  if (name.starts_with("block.inner.")) {
    return dtensor::Shard(0);
  }
  if (name == "block.outer.weight") {
    return dtensor::Shard(1);
  }
  return dtensor::Replicate();
}

HarnessModel::Inputs NestedWrappedModule::make_input(
    int64_t rank,
    int64_t step,
    int64_t rows) const {
  return {harness_wave({rows, 8}, rank, step)};
}

at::Tensor NestedWrappedModule::make_loss(
    const Inputs& /*inputs*/,
    const at::Tensor& output) {
  return output.pow(2).mean();
}

} // namespace weft::test
