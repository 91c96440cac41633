#include "matmul/amx.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

namespace weft::matmul::amx {

namespace cpublas = at::native::cpublas;

namespace {

/// The number of multiplications that justify another thread.
constexpr int64_t kGrain = int64_t{1} << 20;
/// The columns and the inner size of one kernel. oneDNN generates all
/// instructions of a kernel, so its code grows with the size of the matmul. The
/// sums that one kernel adds up do not depend on the number of threads.
constexpr int64_t kColumns = 256;
constexpr int64_t kInner = 512;

} // namespace

bool is_available() {
  // libtorch packs second matrices only for AMX.
  return cpublas::could_pack(at::kBFloat16);
}

at::Tensor pair_columns(const at::Tensor& rows) {
  // The view as another dtype requires an offset that is a multiple of its
  // element size.
  const auto aligned = rows.storage_offset() % 2 == 0 ? rows : rows.clone();
  return aligned.view(at::kInt).transpose(1, 2).clone(
      at::MemoryFormat::Contiguous);
}

void multiply_into(
    const at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& pairs,
    bool accumulate) {
  const int64_t m = out.size(1);
  const int64_t n = out.size(2);
  const int64_t k = a.size(2);
  auto* to = out.mutable_data_ptr<float>();
  const auto* left = a.const_data_ptr<at::BFloat16>();
  const auto* right = pairs.const_data_ptr<int32_t>();
  const int64_t panels = (n + kColumns - 1) / kColumns;
  const auto grain =
      std::max<int64_t>(kGrain / (m * std::min(n, kColumns) * k), 1);
  at::parallel_for(
      0, out.size(0) * panels, grain, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const int64_t e = i / panels;
          const int64_t column = i % panels * kColumns;
          for (int64_t inner = 0; inner < k; inner += kInner) {
            const auto* b = right + e * pairs.stride(0) +
                            inner / 2 * pairs.stride(1) + column;
            cpublas::brgemm(
                m,
                std::min(kColumns, n - column),
                std::min(kInner, k - inner),
                a.stride(1),
                pairs.stride(1),
                out.stride(1),
                accumulate || inner > 0,
                left + e * a.stride(0) + inner,
                reinterpret_cast<const at::BFloat16*>(b),
                to + e * out.stride(0) + column);
          }
        }
        cpublas::brgemm_release();
      });
}

} // namespace weft::matmul::amx
