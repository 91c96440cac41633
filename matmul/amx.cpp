#include "matmul/amx.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

namespace weft::matmul::amx {

namespace cpublas = at::native::cpublas;

namespace {

/// Multiplications that justify another thread.
constexpr int64_t kGrain = int64_t{1} << 20;

} // namespace

bool is_available() {
  // libtorch packs second matrices for AMX alone.
  static const bool is_available = cpublas::could_pack(at::kBFloat16);
  return is_available;
}

at::Tensor pair_columns(const at::Tensor& rows) {
  return rows.view(at::kInt).transpose(1, 2).contiguous();
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
  const auto grain = std::max<int64_t>(kGrain / (m * n * k), 1);
  at::parallel_for(0, out.size(0), grain, [&](int64_t first, int64_t last) {
    for (int64_t e = first; e < last; ++e) {
      cpublas::brgemm(
          m,
          n,
          k,
          a.stride(1),
          pairs.stride(1),
          out.stride(1),
          accumulate,
          left + e * a.stride(0),
          reinterpret_cast<const at::BFloat16*>(right + e * pairs.stride(0)),
          to + e * out.stride(0));
    }
    cpublas::brgemm_release();
  });
}

} // namespace weft::matmul::amx
