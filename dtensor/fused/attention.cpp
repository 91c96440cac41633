// Shape suffixes: B samples, H heads, Q queries, K keys, D of a head.

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/fused/cpu_loops.h"
#include "dtensor/fused/fused_ops.h"
#include "dtensor/fused/rows.h"
#include "matmul/library.h"
#include "matmul/onednn.h"
#include "mesh/error/ignore_warnings.h"

// Note [Attention by products]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// libtorch's attention on the CPU multiplies blocks of 32 queries of one head:
// thousands of small products a layer, at a third of the processor's speed in
// float32, and in bfloat16 with a call of oneDNN each, whose 9 us are longer
// than the product. Here a block is of many queries of several heads, as large
// as kScratch allows: a product of batches for the scores, a pass over their
// rows, a product with the values. As there, backward computes the scores again
// from the logarithm of each row's sum, so that memory does not grow with the
// square of the length, and a block of a causal attention leaves out the keys
// that none of its queries sees. bfloat16 is computed in float32 and rounded
// once. Source: Dao, FlashAttention-2 (2023).

namespace weft::dtensor {
namespace {

using matmul::onednn::multiply_into;

constexpr int64_t kQueries = 128;
/// Elements of one block's scores: what a core's second cache holds.
constexpr int64_t kScratch = int64_t{1} << 18;
/// Multiplications of queries and keys of one head below which calls of oneDNN
/// cost more than they save. Samples and heads do not count: with half of them,
/// as on two ranks, an attention is computed alike.
constexpr int64_t kMinHeadWork = int64_t{1} << 18;

struct Options {
  bool is_causal;
  float scale;
};

/// libtorch's own products of bfloat16 are oneDNN's, with either library.
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

// [B, H, L, D], in memory as [B, L, H, D].
at::Tensor empty_by_position(const at::Tensor& like) {
  return at::empty(
             {like.size(0), like.size(2), like.size(1), like.size(3)},
             like.options())
      .transpose(1, 2);
}

// A key or value once for each query head that attends to it.
at::Tensor for_each_head(const at::Tensor& tensor, int64_t heads) {
  const int64_t group = heads / tensor.size(1);
  return group == 1 ? tensor : tensor.repeat_interleave(group, 1);
}

// Where the gradient of for_each_head()'s result goes; that of a group is
// summed in float32.
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

// Some heads of one sample, or all heads of several samples.
struct HeadRange {
  int64_t sample;
  int64_t samples;
  int64_t head;
  int64_t heads;

  int64_t count() const { return samples * heads; }
  at::Tensor of(const at::Tensor& tensor_BHLD) const {
    return tensor_BHLD.narrow(0, sample, samples).narrow(1, head, heads);
  }
  /// What is worked on: contiguous [count, L, D] of float32.
  at::Tensor read(const at::Tensor& tensor_BHLD) const {
    constexpr auto kFormat = at::MemoryFormat::Contiguous;
    return of(tensor_BHLD)
        .to(at::kFloat, /*non_blocking=*/false, /*copy=*/false, kFormat)
        .contiguous()
        .flatten(0, 1);
  }
  void write(const at::Tensor& from, const at::Tensor& tensor_BHLD) const {
    of(tensor_BHLD).copy_(from.unflatten(0, {samples, heads}));
  }
};

// Queries of a range of heads, with the keys that at least one of them sees.
struct QueryBlock {
  int64_t first;
  int64_t count;
  int64_t keys;

  at::Tensor queries_of(const at::Tensor& tensor_HQD) const {
    return tensor_HQD.narrow(1, first, count);
  }
  at::Tensor keys_of(const at::Tensor& tensor_HKD) const {
    return tensor_HKD.narrow(1, 0, keys);
  }
  at::Tensor scores(const at::Tensor& scratch, int64_t heads) const {
    return scratch.narrow(0, 0, heads * count * keys)
        .view({heads, count, keys});
  }
};

// How an attention is divided into blocks.
class Blocks {
 public:
  Blocks(const at::Tensor& query, int64_t keys, bool is_causal)
      : samples_(query.size(0)),
        heads_(query.size(1)),
        queries_(query.size(2)),
        keys_(keys),
        is_causal_(is_causal),
        block_(std::min(kQueries, queries_)),
        range_(std::max<int64_t>(kScratch / (block_ * keys), 1)) {}

  /// Memory for the scores of any block.
  at::Tensor make_scratch(const at::Tensor& like) const {
    return at::empty(
        {std::min(range_, samples_ * heads_) * block_ * keys_},
        like.options().dtype(at::kFloat));
  }
  template <class Visit>
  void for_each_range(const Visit& visit) const {
    const int64_t samples = std::max<int64_t>(range_ / heads_, 1);
    for (int64_t sample = 0; sample < samples_; sample += samples) {
      for (int64_t head = 0; head < heads_; head += range_) {
        visit(HeadRange{
            sample,
            std::min(samples, samples_ - sample),
            head,
            std::min(range_, heads_ - head)});
      }
    }
  }
  /// The last queries first: they see all keys that any query does.
  template <class Visit>
  void for_each_block(const Visit& visit) const {
    for (int64_t first = (queries_ - 1) / block_ * block_; first >= 0;
         first -= block_) {
      const int64_t end = std::min(first + block_, queries_);
      visit(QueryBlock{
          first, end - first, is_causal_ ? std::min(keys_, end) : keys_});
    }
  }

 private:
  int64_t samples_, heads_, queries_, keys_;
  bool is_causal_;
  int64_t block_, range_;
};

fused::ScoreRows
rows_of(const QueryBlock& block, int64_t queries, const Options& options) {
  return {
      .queries = block.count,
      .keys = block.keys,
      .begin = block.first,
      .is_causal = options.is_causal,
      .scale = options.scale,
      .length = queries};
}

template <class Loop>
void run_score_rows(const Loop& loop, int64_t heads) {
  fused::run_rows(loop, heads * loop.rows.queries, loop.rows.keys);
}

std::tuple<at::Tensor, at::Tensor> attend(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Options& options) {
  const int64_t queries = query.size(2);
  const auto keys = for_each_head(key, query.size(1));
  const auto values = for_each_head(value, query.size(1));
  const auto output = empty_by_position(query);
  const auto logsumexp = at::empty(
      {query.size(0), query.size(1), queries},
      query.options().dtype(at::kFloat));
  const Blocks blocks(query, key.size(2), options.is_causal);
  const auto scratch = blocks.make_scratch(query);
  blocks.for_each_range([&](const HeadRange& heads) {
    const auto q = heads.read(query);
    const auto k = heads.read(keys);
    const auto v = heads.read(values);
    const auto y = at::empty_like(q);
    const auto sums = heads.of(logsumexp);
    blocks.for_each_block([&](const QueryBlock& block) {
      const auto scores = block.scores(scratch, heads.count());
      multiply_into(
          scores, block.queries_of(q), block.keys_of(k).transpose(1, 2));
      run_score_rows(
          fused::SoftmaxLoop{
              .rows = rows_of(block, queries, options),
              .scores = scores.data_ptr<float>(),
              .logsumexp = sums.data_ptr<float>() + block.first},
          heads.count());
      multiply_into(block.queries_of(y), scores, block.keys_of(v));
    });
    heads.write(y, output);
  });
  return {output, logsumexp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
    const at::Tensor& grad,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& logsumexp,
    const Options& options) {
  const int64_t queries = query.size(2);
  const auto keys = for_each_head(key, query.size(1));
  const auto values = for_each_head(value, query.size(1));
  const auto query_grad = at::empty_like(query);
  const auto key_grad = empty_gradient(key, query.size(1));
  const auto value_grad = empty_gradient(value, query.size(1));
  const auto all_sums = logsumexp.contiguous();
  const Blocks blocks(query, key.size(2), options.is_causal);
  const auto scratch = blocks.make_scratch(query);
  const auto grad_scratch = blocks.make_scratch(query);
  blocks.for_each_range([&](const HeadRange& heads) {
    const auto q = heads.read(query);
    const auto k = heads.read(keys);
    const auto v = heads.read(values);
    const auto g = heads.read(grad);
    const auto q_grad = at::empty_like(q);
    // Keys behind the last query of a causal attention are not seen.
    const bool all_seen = !options.is_causal || queries >= k.size(1);
    const auto k_grad = all_seen ? at::empty_like(k) : at::zeros_like(k);
    const auto v_grad = all_seen ? at::empty_like(v) : at::zeros_like(v);
    const auto sums = heads.of(all_sums);
    blocks.for_each_block([&](const QueryBlock& block) {
      // The first block sees all keys that any of them does.
      const bool accumulates = block.first + block.count < queries;
      const auto block_q = block.queries_of(q);
      const auto block_g = block.queries_of(g);
      const auto block_k = block.keys_of(k);
      const auto scores = block.scores(scratch, heads.count());
      const auto score_grads = block.scores(grad_scratch, heads.count());
      multiply_into(scores, block_q, block_k.transpose(1, 2));
      multiply_into(score_grads, block_g, block.keys_of(v).transpose(1, 2));
      run_score_rows(
          fused::SoftmaxBackwardLoop{
              .rows = rows_of(block, queries, options),
              .scores = scores.data_ptr<float>(),
              .grads = score_grads.data_ptr<float>(),
              .logsumexp = sums.data_ptr<float>() + block.first},
          heads.count());
      multiply_into(
          block.keys_of(v_grad), scores.transpose(1, 2), block_g, accumulates);
      multiply_into(
          block.keys_of(k_grad),
          score_grads.transpose(1, 2),
          block_q,
          accumulates);
      multiply_into(block.queries_of(q_grad), score_grads, block_k);
    });
    heads.write(q_grad, query_grad);
    heads.write(k_grad, key_grad);
    heads.write(v_grad, value_grad);
  });
  return {
      query_grad,
      sum_of_groups(key_grad, key),
      sum_of_groups(value_grad, value)};
}

Options options_of(
    const at::Tensor& query,
    bool is_causal,
    std::optional<double> scale) {
  return {
      .is_causal = is_causal,
      .scale = static_cast<float>(
          scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1)))))};
}

std::tuple<at::Tensor, at::Tensor> attention_on_cpu(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    double dropout_p,
    bool is_causal,
    const std::optional<at::Tensor>& mask,
    std::optional<double> scale) {
  return takes(query, key, value, dropout_p, mask, scale)
             ? attend(query, key, value, options_of(query, is_causal, scale))
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
                   grad,
                   query,
                   key,
                   value,
                   logsumexp,
                   options_of(query, is_causal, scale))
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
  // libtorch warns that its kernels are replaced, which is what is wanted.
  static const auto library = mesh::without_warnings(replace_attention);
}

} // namespace weft::dtensor
