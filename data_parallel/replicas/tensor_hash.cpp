#include "data_parallel/replicas/tensor_hash.h"

#include <bit>

#include <torch/torch.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "data_parallel/parameters/module_state.h"
#include "data_parallel/replicas/wide_hash.h"

namespace weft::data_parallel {
namespace {

constexpr int64_t kBlockBytes = 4096;
/// The number of blocks in a row, see Note [Sums that know places].
constexpr int64_t kRowBlocks = 64;

// Note [Sums that know places]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The blocks are arranged in rows of 64. The two results are sums of all blocks
// modulo 2^64. In the first, each block is multiplied by an odd number that
// depends on its row, in the second by one that depends on its column. A single
// changed word changes both sums, because odd numbers have inverses. Two blocks
// that swap positions are in different rows or different columns. One of the
// sums then changes by the difference of their words times twice their
// distance, which is nonzero and less than 2^64. Only the sums over rows and
// columns are wider than the values, so that the kernel reads the values twice
// and needs no memory of their size. The last row may be shorter.

// Returns the sum over n with the weights 1, 3, 5, ...
// Shapes: values [n, words], result [words].
at::Tensor weighted_sum(const at::Tensor& values) {
  const auto odd_factors =
      at::arange(values.size(0), values.options().dtype(at::kLong)) * 2 + 1;
  return (values * odd_factors.unsqueeze(1))
      .sum(0, /*keepdim=*/false, at::kLong);
}

// Returns both sums of Note [Sums that know places].
// Shapes: blocks [blocks, words], int32; result [2, words], int64.
at::Tensor sums_with_places(const at::Tensor& blocks) {
  const int64_t rows = blocks.size(0) / kRowBlocks;
  const int64_t words = blocks.size(1);
  const auto last =
      blocks.narrow(0, rows * kRowBlocks, blocks.size(0) - rows * kRowBlocks);
  auto by_row = last.sum(0, /*keepdim=*/false, at::kLong) * (2 * rows + 1);
  auto by_column = weighted_sum(last);
  if (rows > 0) {
    const auto whole =
        blocks.narrow(0, 0, rows * kRowBlocks).view({rows, kRowBlocks, words});
    by_row += weighted_sum(whole.sum(1, /*keepdim=*/false, at::kLong));
    by_column += weighted_sum(whole.sum(0, /*keepdim=*/false, at::kLong));
  }
  return at::stack({by_row, by_column});
}

} // namespace

int64_t hash_of(const void* data, size_t bytes) {
  static const detail::WideHash wide = detail::find_wide_hash();
  return std::bit_cast<int64_t>(
      wide ? wide(data, bytes) : XXH3_64bits(data, bytes));
}

int64_t hash_of_bits(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  auto local = local_part(tensor);
  if (!local.is_contiguous() || local.is_conj() || local.is_neg()) {
    local = local.resolve_conj().resolve_neg().contiguous();
  }
  if (!local.is_cpu() && local.numel() > 0) {
    local = detail::sum_of_blocks(local).cpu();
  }
  return hash_of(local.const_data_ptr(), local.nbytes());
}

namespace detail {

at::Tensor sum_of_blocks(const at::Tensor& dense) {
  constexpr int64_t kWord = 4;
  const bool is_aligned =
      dense.storage_offset() * dense.element_size() % kWord == 0;
  const auto bytes =
      (is_aligned ? dense : dense.clone()).view({-1}).view(at::kByte);
  const int64_t whole = bytes.numel() / kBlockBytes * kBlockBytes;
  auto rest = bytes.narrow(0, whole, bytes.numel() - whole);
  if (whole == 0) {
    return rest;
  }
  const auto blocks =
      bytes.narrow(0, 0, whole).view(at::kInt).view({-1, kBlockBytes / kWord});
  const auto sums = sums_with_places(blocks);
  return at::cat({sums.view({-1}).view(at::kByte), rest});
}

} // namespace detail
} // namespace weft::data_parallel
