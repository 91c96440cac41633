// Shapes: B samples, H heads, L queries or keys, D head dim.

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/fused/attention_heads.h"
#include "dtensor/fused/cpu_loops.h"
#include "dtensor/fused/fused_ops.h"
#include "dtensor/fused/rows.h"
#include "matmul/library.h"
#include "matmul/onednn.h"
#include "mesh/error/ignore_warnings.h"

// Note [Attention by products]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// libtorch's attention on the CPU multiplies blocks of 32 to 256 queries of one
// head. These are thousands of small matmuls per layer. In float32 they run at
// a third of the processor's speed. In bfloat16 each is a call of oneDNN, whose
// 9 us are longer than the matmul. Here a block has many queries of several
// heads, as many as the caches hold. It takes a batched matmul for the scores,
// a pass over their rows, and a batched matmul with the values. As in libtorch,
// backward recomputes the scores and uses the logarithm of each row's sum, so
// that memory does not grow with the square of the length. A block of a causal
// attention leaves out the keys that none of its queries sees.
//
// bfloat16 is computed in float32 and rounded once, except on processors with
// AMX. There forward is libtorch's, which uses AMX, and backward multiplies
// bfloat16 in AMX's tiles.
// Source: Dao, FlashAttention-2 (2023).

namespace weft::dtensor {
namespace {

/// The smallest number of multiplications in the query-key matmul of one head
/// for which calls of oneDNN save time. It does not count samples and heads, so
/// that a rank with a shard of them selects the same kernel as one rank with
/// all of them.
constexpr int64_t kMinHeadWork = int64_t{1} << 18;

/// Returns true for bfloat16 with either library, because libtorch's own
/// matmuls of bfloat16 use oneDNN, too.
bool takes_dtype(c10::ScalarType dtype) {
  return dtype == at::kBFloat16 ||
         (dtype == at::kFloat && matmul::library() == matmul::Library::kOneDnn);
}

bool takes(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    double dropout_p,
    const std::optional<at::Tensor>& mask,
    std::optional<double> scale) {
  const auto dtype = query.scalar_type();
  return takes_dtype(dtype) && matmul::onednn::support().has_matmul &&
         dropout_p == 0 && !(mask && mask->defined()) &&
         key.scalar_type() == dtype && value.scalar_type() == dtype &&
         query.dim() == 4 && key.dim() == 4 && value.sizes() == key.sizes() &&
         query.size(0) == key.size(0) && query.size(3) == key.size(3) &&
         key.size(1) > 0 && query.size(1) % key.size(1) == 0 &&
         query.numel() > 0 &&
         query.size(2) * key.size(2) * query.size(3) >= kMinHeadWork &&
         scale.value_or(1) > 0;
}

at::Tensor empty_by_position(const at::Tensor& like) {
  return at::empty(
             {like.size(0), like.size(2), like.size(1), like.size(3)},
             like.options())
      .transpose(1, 2);
}

at::Tensor for_each_head(const at::Tensor& tensor, int64_t heads) {
  const int64_t group = heads / tensor.size(1);
  return group == 1 ? tensor : tensor.repeat_interleave(group, 1);
}

// Returns memory for the gradient of the result of for_each_head(). It is
// float32 if heads were repeated, because sum_of_groups() then adds the
// gradients.
at::Tensor empty_gradient(const at::Tensor& tensor, int64_t heads) {
  if (tensor.size(1) == heads) {
    return at::empty_like(tensor);
  }
  return at::empty(
      {tensor.size(0), heads, tensor.size(2), tensor.size(3)},
      tensor.options().dtype(at::kFloat));
}

at::Tensor sum_of_groups(const at::Tensor& grad, const at::Tensor& tensor) {
  const int64_t heads = tensor.size(1);
  return grad.size(1) == heads
             ? grad
             : grad.unflatten(1, {heads, grad.size(1) / heads})
                   .sum(2)
                   .to(tensor.scalar_type());
}

fused::AttentionInputs inputs_of(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& grad,
    bool is_causal,
    std::optional<double> scale) {
  return {
      .query = query,
      .key = for_each_head(key, query.size(1)),
      .value = for_each_head(value, query.size(1)),
      .grad = grad,
      .is_causal = is_causal,
      .scale = static_cast<float>(
          scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1)))))};
}

fused::ScoreRows rows_of(
    const fused::QueryBlock& block,
    const at::Tensor& scores,
    const fused::AttentionInputs& inputs) {
  return {
      .queries = block.count,
      .keys = block.keys,
      .head_stride = scores.stride(0),
      .stride = scores.stride(1),
      .begin = block.first,
      .is_causal = inputs.is_causal,
      .scale = inputs.scale,
      .length = inputs.queries()};
}

template <class Loop>
void run_score_rows(const Loop& loop, const at::Tensor& scores) {
  fused::run_rows(loop, scores.size(0) * loop.rows.queries, loop.rows.keys);
}

std::tuple<at::Tensor, at::Tensor> attend(
    const fused::AttentionInputs& inputs) {
  using fused::FloatHeads;
  const auto output = empty_by_position(inputs.query);
  const auto logsumexp = at::empty(
      inputs.query.sizes().slice(0, 3),
      inputs.query.options().dtype(at::kFloat));
  const fused::Blocks blocks(inputs, FloatHeads::kScratch, FloatHeads::kTile);
  FloatHeads heads(inputs, blocks);
  blocks.for_each_range([&](const fused::HeadRange& range) {
    heads.begin(range);
    const auto sums = range.of(logsumexp);
    blocks.for_each_block([&](const fused::QueryBlock& block) {
      const auto scores = heads.scores(block);
      run_score_rows(
          fused::SoftmaxLoop{
              .rows = rows_of(block, scores, inputs),
              .scores = scores.data_ptr<float>(),
              .logsumexp = sums.data_ptr<float>() + block.first},
          scores);
      heads.compute_output(block, scores);
    });
    heads.write_output(output);
  });
  return {output, logsumexp};
}

// Writes the gradients of the query, and of the key and value of each query
// head, to `grads`.
template <class Heads>
void attend_backward(
    const fused::AttentionInputs& inputs,
    const at::Tensor& logsumexp,
    const fused::AttentionGrads& grads) {
  const auto all_sums = logsumexp.contiguous();
  const fused::Blocks blocks(inputs, Heads::kScratch, Heads::kTile);
  Heads heads(inputs, blocks);
  blocks.for_each_range([&](const fused::HeadRange& range) {
    heads.begin(range);
    const auto sums = range.of(all_sums);
    blocks.for_each_block([&](const fused::QueryBlock& block) {
      const at::Tensor scores = heads.scores(block);
      const at::Tensor score_grads = heads.value_products(block);
      run_score_rows(
          fused::SoftmaxBackwardLoop{
              .rows = rows_of(block, scores, inputs),
              .scores = scores.data_ptr<float>(),
              .grads = score_grads.data_ptr<float>(),
              .logsumexp = sums.data_ptr<float>() + block.first},
          scores);
      heads.add_value_grad(block, scores);
      heads.add_score_grad(block, score_grads);
    });
    heads.write_grads(grads);
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
    const fused::AttentionInputs& inputs,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& logsumexp) {
  const auto& query = inputs.query;
  const fused::AttentionGrads grads{
      .query = at::empty_like(query),
      .key = empty_gradient(key, query.size(1)),
      .value = empty_gradient(value, query.size(1))};
  if (fused::TileHeads::takes(query)) {
    attend_backward<fused::TileHeads>(inputs, logsumexp, grads);
  } else {
    attend_backward<fused::FloatHeads>(inputs, logsumexp, grads);
  }
  return {
      grads.query,
      sum_of_groups(grads.key, key),
      sum_of_groups(grads.value, value)};
}

std::tuple<at::Tensor, at::Tensor> attention_on_cpu(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    double dropout_p,
    bool is_causal,
    const std::optional<at::Tensor>& mask,
    std::optional<double> scale) {
  return takes(query, key, value, dropout_p, mask, scale) &&
                 !fused::TileHeads::takes(query)
             ? attend(inputs_of(query, key, value, {}, is_causal, scale))
             : at::native::_scaled_dot_product_flash_attention_cpu(
                   query, key, value, dropout_p, is_causal, mask, scale);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_on_cpu_backward(
    const at::Tensor& grad,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    double dropout_p,
    bool is_causal,
    const std::optional<at::Tensor>& mask,
    std::optional<double> scale) {
  return takes(query, key, value, dropout_p, mask, scale)
             ? attend_backward(
                   inputs_of(query, key, value, grad, is_causal, scale),
                   key,
                   value,
                   logsumexp)
             : at::native::_scaled_dot_product_flash_attention_cpu_backward(
                   grad,
                   query,
                   key,
                   value,
                   output,
                   logsumexp,
                   dropout_p,
                   is_causal,
                   mask,
                   scale);
}

torch::Library replace_attention() {
  torch::Library library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library.impl(
      "_scaled_dot_product_flash_attention_for_cpu",
      TORCH_FN(attention_on_cpu));
  library.impl(
      "_scaled_dot_product_flash_attention_for_cpu_backward",
      TORCH_FN(attention_on_cpu_backward));
  return library;
}

} // namespace

void register_attention() {
  // Suppresses the warning of libtorch that its kernels are overridden.
  static const auto library = mesh::without_warnings(replace_attention);
}

} // namespace weft::dtensor
