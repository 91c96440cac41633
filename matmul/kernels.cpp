#include "matmul/kernels.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "matmul/library.h"
#include "matmul/onednn.h"
#include "mesh/error/ignore_warnings.h"

namespace weft::matmul {
namespace {

// Note [Which products are oneDNN's]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// oneDNN is used only for float32 on the CPU. float64 and integers are
// multiplied by libtorch's own kernels, and for bfloat16 libtorch calls oneDNN
// itself. A call of oneDNN costs 9 us before it multiplies, and one of MKL 0.4
// us. On an EPYC with AVX-512 both take the same time at 2^20 multiplications
// (96^3: 17 us each; 16 x 256 x 256: 23 us). MKL is faster below that.
//
// The rule for one matmul depends only on the second matrix, if the first one
// has a minimum number of rows. oneDNN's sums of a row have the same bits for
// any number of rows. So the result for a part of a batch, on another rank or
// in another message (dtensor/kernels/chunked_matmul.h), equals that for the
// full batch. With 2^14 elements in the second matrix, both libraries take the
// same time at 64 rows. With an inner size or column count of 1, oneDNN is
// always slower (1024 x 1 x 1024: 174 against 52 us). With 2 it is sometimes
// slower, and from 4 on never.
//
// For a batched matmul, the work of all matrices counts (512 matmuls of 16^3:
// 60 to 78 us).
constexpr int64_t kMinRows = 16;
constexpr int64_t kMinSize = 4;
constexpr int64_t kMinMatrix = int64_t{1} << 14;
constexpr int64_t kMinBatchWork = int64_t{1} << 20;

bool is_worth_onednn(const at::Tensor& a, const at::Tensor& b) {
  const int64_t rows = a.size(-2);
  const int64_t inner = a.size(-1);
  const int64_t columns = b.size(-1);
  if (std::min(inner, columns) < kMinSize) {
    return false;
  }
  return a.dim() == 2 ? rows >= kMinRows && inner * columns >= kMinMatrix
                      : rows >= kMinSize &&
                            a.size(0) * rows * inner * columns >= kMinBatchWork;
}

// Returns true if shapes and dtypes are those of a matmul. Otherwise libtorch's
// kernel reports the error.
bool is_product(const at::Tensor& a, const at::Tensor& b, int64_t ndim) {
  return a.dim() == ndim && b.dim() == ndim &&
         a.scalar_type() == b.scalar_type() &&
         a.size(ndim - 1) == b.size(ndim - 2) &&
         (ndim == 2 || a.size(0) == b.size(0));
}

bool takes_float(const at::Tensor& a, const at::Tensor& b, int64_t ndim) {
  return library() == Library::kOneDnn && a.scalar_type() == at::kFloat &&
         is_product(a, b, ndim) && is_worth_onednn(a, b) &&
         (ndim == 2 || onednn::support().has_matmul);
}

// Returns true for bfloat16 that oneDNN cannot multiply on this processor.
bool is_widened(const at::Tensor& a, const at::Tensor& b) {
  return library() == Library::kOneDnn && a.scalar_type() == at::kBFloat16 &&
         b.scalar_type() == at::kBFloat16 && !onednn::support().has_bfloat16;
}

// Returns true if oneDNN can write to `out` directly.
bool takes_result(
    const at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& b) {
  return out.scalar_type() == at::kFloat && out.device().is_cpu() &&
         out.sizes().equals(onednn::product_sizes(a, b)) &&
         out.is_contiguous() &&
         at::get_overlap_status(out, a) == at::MemOverlapStatus::No &&
         at::get_overlap_status(out, b) == at::MemOverlapStatus::No;
}

// libtorch's own kernels for matrices. `Batches` names those for batches of
// matrices.
struct Matrices {
  static constexpr int64_t kNdim = 2;
  static constexpr auto product = &at::cpu::mm;
  static constexpr auto product_out = &at::cpu::mm_outf;
  static constexpr auto sum = &at::cpu::addmm;
  static constexpr auto sum_out = &at::cpu::addmm_outf;
  static constexpr auto sum_in_place = &at::cpu::addmm_;
};

struct Batches {
  static constexpr int64_t kNdim = 3;
  static constexpr auto product = &at::cpu::bmm;
  static constexpr auto product_out = &at::cpu::bmm_outf;
  static constexpr auto sum = &at::cpu::baddbmm;
  static constexpr auto sum_out = &at::cpu::baddbmm_outf;
  static constexpr auto sum_in_place = &at::cpu::baddbmm_;
};

// Returns true if oneDNN can add to the addend as it is, in float32.
bool takes_addend(
    const at::Tensor& addend,
    c10::IntArrayRef sizes,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  return addend.scalar_type() == at::kFloat && addend.device().is_cpu() &&
         beta.equal(1) && alpha.equal(1) &&
         at::is_expandable_to(addend.sizes(), sizes);
}

at::Tensor widen(const at::Tensor& tensor) {
  return tensor.to(at::kFloat);
}

template <class Kernels>
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (takes_float(a, b, Kernels::kNdim)) {
    return onednn::multiply(a, b);
  }
  if (is_widened(a, b)) {
    return product<Kernels>(widen(a), widen(b)).to(at::kBFloat16);
  }
  return Kernels::product(a, b);
}

template <class Kernels>
at::Tensor&
product_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (takes_float(a, b, Kernels::kNdim) && takes_result(out, a, b)) {
    onednn::multiply_into(out, a, b);
    return out;
  }
  if (is_widened(a, b) && out.scalar_type() == at::kBFloat16) {
    const auto result = product<Kernels>(a, b);
    at::native::resize_output(out, result.sizes());
    return out.copy_(result);
  }
  return Kernels::product_out(a, b, out);
}

template <class Kernels>
at::Tensor sum(
    const at::Tensor& addend,
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  if (takes_float(a, b, Kernels::kNdim)) {
    const auto sizes = onednn::product_sizes(a, b);
    if (takes_addend(addend, sizes, beta, alpha)) {
      auto result = at::empty(sizes, a.options());
      result.copy_(addend);
      onednn::multiply_into(result, a, b, /*accumulate=*/true);
      return result;
    }
  }
  if (is_widened(a, b)) {
    return sum<Kernels>(widen(addend), widen(a), widen(b), beta, alpha)
        .to(at::kBFloat16);
  }
  return Kernels::sum(addend, a, b, beta, alpha);
}

// Writes the sum to `out` and returns true if oneDNN supports these tensors.
// Otherwise returns false.
template <class Kernels>
bool sum_into(
    at::Tensor& out,
    const at::Tensor& addend,
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  if (!takes_float(a, b, Kernels::kNdim) || !takes_result(out, a, b) ||
      !takes_addend(addend, out.sizes(), beta, alpha)) {
    return false;
  }
  if (!out.is_same(addend)) {
    out.copy_(addend);
  }
  onednn::multiply_into(out, a, b, /*accumulate=*/true);
  return true;
}

template <class Kernels>
at::Tensor& sum_out(
    const at::Tensor& addend,
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Scalar& beta,
    const at::Scalar& alpha,
    at::Tensor& out) {
  if (sum_into<Kernels>(out, addend, a, b, beta, alpha)) {
    return out;
  }
  if (is_widened(a, b) && out.scalar_type() == at::kBFloat16) {
    const auto result = sum<Kernels>(addend, a, b, beta, alpha);
    at::native::resize_output(out, result.sizes());
    return out.copy_(result);
  }
  return Kernels::sum_out(addend, a, b, beta, alpha, out);
}

template <class Kernels>
at::Tensor& sum_in_place(
    at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  if (sum_into<Kernels>(out, out, a, b, beta, alpha)) {
    return out;
  }
  if (is_widened(a, b) && out.scalar_type() == at::kBFloat16) {
    return out.copy_(sum<Kernels>(out, a, b, beta, alpha));
  }
  return Kernels::sum_in_place(out, a, b, beta, alpha);
}

torch::Library replace_kernels() {
  torch::Library library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library.impl("mm", TORCH_FN(product<Matrices>));
  library.impl("mm.out", TORCH_FN(product_out<Matrices>));
  library.impl("addmm", TORCH_FN(sum<Matrices>));
  library.impl("addmm.out", TORCH_FN(sum_out<Matrices>));
  library.impl("addmm_", TORCH_FN(sum_in_place<Matrices>));
  library.impl("bmm", TORCH_FN(product<Batches>));
  library.impl("bmm.out", TORCH_FN(product_out<Batches>));
  library.impl("baddbmm", TORCH_FN(sum<Batches>));
  library.impl("baddbmm.out", TORCH_FN(sum_out<Batches>));
  library.impl("baddbmm_", TORCH_FN(sum_in_place<Batches>));
  return library;
}

} // namespace

void register_kernels() {
  // Suppresses libtorch's warning that its kernels are replaced.
  static const auto library = mesh::without_warnings(replace_kernels);
}

} // namespace weft::matmul
