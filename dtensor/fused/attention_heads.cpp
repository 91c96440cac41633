#include "dtensor/fused/attention_heads.h"

#include <ATen/ATen.h>

#include "dtensor/fused/cpu_loops.h"
#include "dtensor/fused/rows.h"
#include "matmul/amx.h"
#include "matmul/onednn.h"

namespace weft::dtensor::fused {
namespace {

namespace amx = matmul::amx;
using matmul::onednn::multiply_into;

// Writes the rows of contiguous matrices [e, k, n], with even k, to `pairs`:
// see PairRowsLoop.
template <class T>
void pair_rows(const at::Tensor& rows, const at::Tensor& pairs) {
  const int64_t columns = rows.size(2);
  run_rows(
      PairRowsLoop<T>{
          .input = rows.const_data_ptr<T>(),
          .pairs = static_cast<uint32_t*>(pairs.mutable_data_ptr()),
          .columns = columns},
      rows.size(0) * rows.size(1) / 2,
      2 * columns);
}

at::Tensor pair_positions(const at::Tensor& rows) {
  const auto pairs = at::empty(
      {rows.size(0), rows.size(1) / 2, rows.size(2)},
      rows.options().dtype(at::kInt));
  pair_rows<c10::BFloat16>(rows, pairs);
  return pairs;
}

} // namespace

// ---- FloatHeads -------------------------------------------------------------

FloatHeads::FloatHeads(const AttentionInputs& inputs, const Blocks& blocks)
    : inputs_(inputs),
      blocks_(blocks),
      scratch_(blocks.make_scratch(at::kFloat)) {
  if (inputs.grad.defined()) {
    grad_scratch_ = blocks.make_scratch(at::kFloat);
  }
}

void FloatHeads::begin(const HeadRange& range) {
  range_ = range;
  const int64_t queries = inputs_.queries();
  const int64_t keys = inputs_.seen_keys();
  query_ = range.read(inputs_.query, at::kFloat, queries, queries);
  key_ = range.read(inputs_.key, at::kFloat, keys, keys);
  value_ = range.read(inputs_.value, at::kFloat, keys, keys);
  if (!inputs_.grad.defined()) {
    output_ = at::empty_like(query_);
    return;
  }
  grad_ = range.read(inputs_.grad, at::kFloat, queries, queries);
  query_grad_ = at::empty_like(query_);
  key_grad_ = at::empty_like(key_);
  value_grad_ = at::empty_like(key_);
}

at::Tensor FloatHeads::multiply(
    const at::Tensor& scratch,
    const at::Tensor& left,
    const at::Tensor& right,
    const QueryBlock& block) {
  auto product = blocks_.scores_in(scratch, range_, block);
  multiply_into(
      product,
      left.narrow(1, block.first, block.count),
      right.narrow(1, 0, block.keys).transpose(1, 2));
  return product;
}

at::Tensor FloatHeads::scores(const QueryBlock& block) {
  return multiply(scratch_, query_, key_, block);
}

void FloatHeads::compute_output(
    const QueryBlock& block,
    const at::Tensor& probabilities) {
  multiply_into(
      output_.narrow(1, block.first, block.count),
      probabilities,
      value_.narrow(1, 0, block.keys));
}

void FloatHeads::write_output(const at::Tensor& output) {
  range_.write(output_, inputs_.queries(), output);
}

at::Tensor FloatHeads::value_products(const QueryBlock& block) {
  return multiply(grad_scratch_, grad_, value_, block);
}

void FloatHeads::add_value_grad(
    const QueryBlock& block,
    const at::Tensor& probabilities) {
  multiply_into(
      value_grad_.narrow(1, 0, block.keys),
      probabilities.transpose(1, 2),
      grad_.narrow(1, block.first, block.count),
      !block.is_first_visited);
}

void FloatHeads::add_score_grad(
    const QueryBlock& block,
    const at::Tensor& score_grad) {
  multiply_into(
      key_grad_.narrow(1, 0, block.keys),
      score_grad.transpose(1, 2),
      query_.narrow(1, block.first, block.count),
      !block.is_first_visited);
  multiply_into(
      query_grad_.narrow(1, block.first, block.count),
      score_grad,
      key_.narrow(1, 0, block.keys));
}

void FloatHeads::write_grads(const AttentionGrads& grads) {
  range_.write(query_grad_, inputs_.queries(), grads.query);
  range_.write(key_grad_, inputs_.seen_keys(), grads.key);
  range_.write(value_grad_, inputs_.seen_keys(), grads.value);
}

// ---- TileHeads --------------------------------------------------------------

bool TileHeads::takes(const at::Tensor& query) {
  return query.scalar_type() == at::kBFloat16 && query.size(3) % 2 == 0 &&
         amx::is_available();
}

TileHeads::TileHeads(const AttentionInputs& inputs, const Blocks& blocks)
    : inputs_(inputs),
      blocks_(blocks),
      queries_(fill_up(inputs.queries(), kTile)),
      keys_(fill_up(inputs.seen_keys(), kTile)),
      scratch_(blocks.make_scratch(at::kFloat)),
      grad_scratch_(blocks.make_scratch(at::kFloat)),
      rounded_(blocks.make_scratch(at::kBFloat16)),
      pairs_(blocks.make_scratch(at::kBFloat16).view(at::kInt)) {}

void TileHeads::begin(const HeadRange& range) {
  range_ = range;
  const auto read_queries = [&](const at::Tensor& tensor) {
    return range.read(tensor, at::kBFloat16, inputs_.queries(), queries_);
  };
  const auto read_keys = [&](const at::Tensor& tensor) {
    return range.read(tensor, at::kBFloat16, inputs_.seen_keys(), keys_);
  };
  query_ = read_queries(inputs_.query);
  const auto key = read_keys(inputs_.key);
  const auto value = read_keys(inputs_.value);
  key_dim_pairs_ = amx::pair_columns(key);
  const auto options = query_.options().dtype(at::kFloat);
  value_dim_pairs_ = amx::pair_columns(value);
  key_pairs_ = pair_positions(key);
  grad_ = read_queries(inputs_.grad);
  query_by_dim_ = query_.transpose(1, 2).contiguous();
  grad_by_dim_ = grad_.transpose(1, 2).contiguous();
  query_grad_ = at::empty(query_.sizes(), options);
  const at::DimVector by_dim{key.size(0), key.size(2), keys_};
  key_grad_by_dim_ = at::empty(by_dim, options);
  value_grad_by_dim_ = at::empty(by_dim, options);
}

at::Tensor TileHeads::multiply(
    const at::Tensor& scratch,
    const at::Tensor& left,
    const at::Tensor& pairs,
    const QueryBlock& block) {
  auto product = blocks_.scores_in(scratch, range_, block);
  amx::multiply_into(
      product,
      left.narrow(1, block.first, product.size(1)),
      pairs.narrow(2, 0, product.size(2)));
  return product;
}

at::Tensor TileHeads::rounded(const at::Tensor& scores) {
  return rounded_.narrow(0, 0, scores.numel())
      .view(scores.sizes())
      .copy_(scores);
}

at::Tensor TileHeads::paired(const at::Tensor& scores) {
  auto pairs = pairs_.narrow(0, 0, scores.numel() / 2)
                   .view({scores.size(0), scores.size(1) / 2, scores.size(2)});
  pair_rows<float>(scores, pairs);
  return pairs;
}

at::Tensor TileHeads::scores(const QueryBlock& block) {
  return multiply(scratch_, query_, key_dim_pairs_, block);
}

at::Tensor TileHeads::value_products(const QueryBlock& block) {
  return multiply(grad_scratch_, grad_, value_dim_pairs_, block);
}

void TileHeads::add_value_grad(
    const QueryBlock& block,
    const at::Tensor& probabilities) {
  amx::multiply_into(
      value_grad_by_dim_.narrow(2, 0, probabilities.size(2)),
      grad_by_dim_.narrow(2, block.first, probabilities.size(1)),
      paired(probabilities),
      !block.is_first_visited);
}

void TileHeads::add_score_grad(
    const QueryBlock& block,
    const at::Tensor& score_grad) {
  amx::multiply_into(
      key_grad_by_dim_.narrow(2, 0, score_grad.size(2)),
      query_by_dim_.narrow(2, block.first, score_grad.size(1)),
      paired(score_grad),
      !block.is_first_visited);
  amx::multiply_into(
      query_grad_.narrow(1, block.first, score_grad.size(1)),
      rounded(score_grad),
      key_pairs_.narrow(1, 0, score_grad.size(2) / 2));
}

void TileHeads::write_grads(const AttentionGrads& grads) {
  const int64_t keys = inputs_.seen_keys();
  range_.write(query_grad_, inputs_.queries(), grads.query);
  range_.write(key_grad_by_dim_.transpose(1, 2), keys, grads.key);
  range_.write(value_grad_by_dim_.transpose(1, 2), keys, grads.value);
}

} // namespace weft::dtensor::fused
