#include "ddp/tensor_hash.h"

#include <bit>

#include <torch/torch.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ddp/module_state.h"
#include "ddp/wide_hash.h"

namespace weft::ddp {
namespace {

constexpr int64_t kBlockBytes = 4096;

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
  const auto rest = bytes.narrow(0, whole, bytes.numel() - whole);
  if (whole == 0) {
    return rest;
  }
  const auto sums = bytes.narrow(0, 0, whole)
                        .view(at::kInt)
                        .view({-1, kBlockBytes / kWord})
                        .sum(0, /*keepdim=*/false, at::kLong);
  return at::cat({sums.view(at::kByte), rest});
}

} // namespace detail
} // namespace weft::ddp
