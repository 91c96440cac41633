#include "matmul/onednn.h"

#include <functional>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "mesh/error/error.h"

// libtorch exports this function without declaring it in a header. It is weak,
// because a libtorch may lack it. multiply() then uses linear_pointwise().
namespace at::native {
__attribute__((weak)) void mkldnn_matmul(
    const Tensor& a,
    const Tensor& b,
    const Tensor& result,
    float beta,
    float alpha);
} // namespace at::native

namespace weft::matmul::onednn {
namespace {

using Scalars = c10::List<std::optional<at::Scalar>>;
using LinearPointwise = at::Tensor(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    c10::string_view unary,
    Scalars scalars,
    std::optional<c10::string_view> algorithm);

// Returns a b through an op that TorchInductor's programs call. The op computes
// x w' and can fuse an activation, which is not used here.
at::Tensor linear_pointwise(const at::Tensor& a, const at::Tensor& b) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<LinearPointwise>();
  // The op is a quarter slower if the left matrix is a transposed view.
  return op.call(a.contiguous(), b.t(), std::nullopt, "none", Scalars(), "");
}

// Returns the reason why `multiply` fails for two small matrices of `dtype`.
// Empty if it returns their product.
std::string try_product(
    c10::ScalarType dtype,
    const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>&
        multiply) {
  try {
    const auto a = at::arange(6, at::kFloat).view({2, 3}).to(dtype);
    const auto b = at::arange(12, at::kFloat).view({3, 4}).to(dtype);
    const auto product = multiply(a, b);
    // These are integers that both dtypes represent exactly.
    const auto expected = at::tensor({20, 23, 26, 29, 56, 68, 80, 92});
    return at::equal(product.to(at::kLong).flatten(), expected.to(at::kLong))
               ? ""
               : "a product of it is wrong";
  } catch (const c10::Error& error) {
    return mesh::first_line_of(error);
  }
}

at::Tensor mkldnn_matmul(const at::Tensor& a, const at::Tensor& b) {
  auto result = at::empty(product_sizes(a, b), a.options());
  at::native::mkldnn_matmul(a, b, result, /*beta=*/0, /*alpha=*/1);
  return result;
}

Support try_all() {
  if (!at::globalContext().hasMKLDNN()) {
    return {.problem = "this libtorch was built without it"};
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  Support result;
  if (&at::native::mkldnn_matmul != nullptr) {
    result.has_matmul = try_product(at::kFloat, mkldnn_matmul).empty();
    result.has_bfloat16 = try_product(at::kBFloat16, mkldnn_matmul).empty();
  }
  if (!result.has_matmul) {
    result.problem = try_product(at::kFloat, linear_pointwise);
  }
  return result;
}

} // namespace

const Support& support() {
  static const Support tried = try_all();
  return tried;
}

std::vector<int64_t> product_sizes(const at::Tensor& a, const at::Tensor& b) {
  auto sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  return sizes;
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) {
  return support().has_matmul ? mkldnn_matmul(a, b) : linear_pointwise(a, b);
}

void multiply_into(
    const at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& b,
    bool accumulate) {
  if (support().has_matmul) {
    at::native::mkldnn_matmul(a, b, out, accumulate ? 1.0F : 0.0F, 1.0F);
  } else if (accumulate) {
    out.add_(linear_pointwise(a, b));
  } else {
    out.copy_(linear_pointwise(a, b));
  }
}

} // namespace weft::matmul::onednn
