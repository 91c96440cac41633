// What libtorch makes itself inside an op must not meet the user as "mixes
// DTensors with a plain tensor": functionals and tensor functions, forward and
// backward, on DTensors alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/version.h>

#include "dtensor/random/random_state.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/failure.h"
#include "tests/dtensor/parts.h"

namespace weft::dtensor {
namespace {

namespace F = torch::nn::functional;
using dtensor::test::distributed;
using dtensor::test::fake_line;
using dtensor::test::random;
using Call = std::function<at::Tensor()>;
using Calls = std::vector<std::pair<std::string, Call>>;

const mesh::DeviceMesh& one_rank() {
  static const auto mesh = fake_line(0, 1);
  return mesh;
}

at::Tensor whole(const at::Tensor& tensor) {
  return distributed(tensor, one_rank(), {Replicate()});
}

at::Tensor x(c10::IntArrayRef sizes) {
  return whole(random(sizes, sizes.size()).requires_grad_());
}

at::Tensor positive(c10::IntArrayRef sizes) {
  return whole(random(sizes, 9).abs().add(0.1).requires_grad_());
}

at::Tensor target(c10::IntArrayRef sizes) {
  return whole(random(sizes, 7));
}

at::Tensor whole_integers(c10::IntArrayRef sizes, int64_t below) {
  return whole(random(sizes, 5).mul(100).abs().to(at::kLong).remainder(below));
}

at::Tensor signs(c10::IntArrayRef sizes) {
  return whole(random(sizes, 6).sign());
}

at::Tensor symmetric() {
  const auto a = random({4, 4}, 1);
  return whole((a.mm(a.t()) + at::eye(4, at::kDouble) * 4).requires_grad_());
}

Calls activations() {
  return {
      {"elu",
       [] {
         return F::elu(x({3, 4}));
       }},
      {"selu",
       [] {
         return F::selu(x({3, 4}));
       }},
      {"celu",
       [] {
         return F::celu(x({3, 4}));
       }},
      {"glu",
       [] {
         return F::glu(x({3, 4}));
       }},
      {"gelu",
       [] {
         return F::gelu(x({3, 4}));
       }},
      {"silu",
       [] {
         return F::silu(x({3, 4}));
       }},
      {"mish",
       [] {
         return F::mish(x({3, 4}));
       }},
      {"relu6",
       [] {
         return F::relu6(x({3, 4}));
       }},
      {"rrelu",
       [] {
         return F::rrelu(x({3, 4}), F::RReLUFuncOptions().training(true));
       }},
      {"hardshrink",
       [] {
         return F::hardshrink(x({3, 4}));
       }},
      {"hardtanh",
       [] {
         return F::hardtanh(x({3, 4}));
       }},
      {"leaky_relu",
       [] {
         return F::leaky_relu(x({3, 4}));
       }},
      {"logsigmoid",
       [] {
         return F::logsigmoid(x({3, 4}));
       }},
      {"prelu",
       [] {
         return F::prelu(x({3, 4}), x({4}));
       }},
      {"softplus",
       [] {
         return F::softplus(x({3, 4}));
       }},
      {"softshrink",
       [] {
         return F::softshrink(x({3, 4}));
       }},
      {"softsign",
       [] {
         return F::softsign(x({3, 4}));
       }},
      {"tanhshrink",
       [] {
         return F::tanhshrink(x({3, 4}));
       }},
      {"threshold",
       [] {
         return F::threshold(x({3, 4}), F::ThresholdFuncOptions(0.1, 2));
       }},
      {"softmax",
       [] {
         return F::softmax(x({3, 4}), 1);
       }},
      {"softmin",
       [] {
         return F::softmin(x({3, 4}), 0);
       }},
      {"log_softmax",
       [] {
         return F::log_softmax(x({3, 4}), 1);
       }},
      {"gumbel_softmax",
       [] {
         return F::gumbel_softmax(x({3, 4}));
       }},
      {"hard gumbel_softmax",
       [] {
         return F::gumbel_softmax(
             x({3, 4}), F::GumbelSoftmaxFuncOptions().hard(true));
       }},
      {"dropout",
       [] {
         return F::dropout(x({3, 4}));
       }},
      {"dropout2d",
       [] {
         return F::dropout2d(x({3, 4, 2, 2}));
       }},
      {"alpha_dropout",
       [] {
         return F::alpha_dropout(
             x({3, 4}), F::AlphaDropoutFuncOptions().training(true));
       }},
      {"normalize",
       [] {
         return F::normalize(x({3, 4}));
       }},
      {"local_response_norm",
       [] {
         return F::local_response_norm(
             x({2, 4, 5}), F::LocalResponseNormFuncOptions(2));
       }},
      {"instance_norm",
       [] {
         return F::instance_norm(x({2, 4, 5}));
       }},
      {"group_norm",
       [] {
         return F::group_norm(x({2, 4, 5}), F::GroupNormFuncOptions(2));
       }},
  };
}

Calls losses() {
  return {
      {"l1",
       [] {
         return F::l1_loss(x({3, 4}), target({3, 4}));
       }},
      {"mse",
       [] {
         return F::mse_loss(x({3, 4}), target({3, 4}));
       }},
      {"smooth_l1",
       [] {
         return F::smooth_l1_loss(x({3, 4}), target({3, 4}));
       }},
      {"huber",
       [] {
         return F::huber_loss(x({3, 4}), target({3, 4}));
       }},
      {"kl_div",
       [] {
         return F::kl_div(x({3, 4}), target({3, 4}).softmax(1));
       }},
      {"bce",
       [] {
         return F::binary_cross_entropy(
             x({3, 4}).sigmoid(), target({3, 4}).sigmoid());
       }},
      {"bce_with_logits",
       [] {
         return F::binary_cross_entropy_with_logits(
             x({3, 4}), target({3, 4}).sigmoid());
       }},
      {"hinge_embedding",
       [] {
         return F::hinge_embedding_loss(x({3, 4}), signs({3, 4}));
       }},
      {"multi_margin",
       [] {
         return F::multi_margin_loss(x({3, 4}), whole_integers({3}, 4));
       }},
      {"cosine_embedding",
       [] {
         return F::cosine_embedding_loss(x({3, 4}), x({3, 4}), signs({3}));
       }},
      {"multilabel_margin",
       [] {
         return F::multilabel_margin_loss(x({3, 4}), whole_integers({3, 4}, 4));
       }},
      {"soft_margin",
       [] {
         return F::soft_margin_loss(x({3, 4}), signs({3, 4}));
       }},
      {"multilabel_soft_margin",
       [] {
         return F::multilabel_soft_margin_loss(
             x({3, 4}), target({3, 4}).sigmoid());
       }},
      {"triplet_margin",
       [] {
         return F::triplet_margin_loss(x({3, 4}), x({3, 4}), target({3, 4}));
       }},
      {"triplet_margin_with_distance",
       [] {
         return F::triplet_margin_with_distance_loss(
             x({3, 4}), x({3, 4}), target({3, 4}));
       }},
      {"poisson_nll",
       [] {
         return F::poisson_nll_loss(x({3, 4}), target({3, 4}).abs());
       }},
      {"margin_ranking",
       [] { return F::margin_ranking_loss(x({3}), x({3}), signs({3})); }},
      {"nll",
       [] {
         return F::nll_loss(x({3, 4}).log_softmax(1), whole_integers({3}, 4));
       }},
      {"cross_entropy",
       [] {
         return F::cross_entropy(x({3, 4}), whole_integers({3}, 4));
       }},
      {"ctc",
       [] {
         return F::ctc_loss(
             x({6, 2, 4}).log_softmax(2),
             whole_integers({2, 3}, 3) + 1,
             whole(at::full({2}, 6, at::kLong)),
             whole(at::full({2}, 3, at::kLong)));
       }},
  };
}

Calls planes() {
  return {
      {"conv1d",
       [] {
         return F::conv1d(x({2, 3, 7}), x({4, 3, 3}));
       }},
      {"conv_transpose2d",
       [] {
         return F::conv_transpose2d(x({2, 3, 4, 4}), x({3, 2, 3, 3}));
       }},
      {"avg_pool2d",
       [] {
         return F::avg_pool2d(x({2, 3, 4, 4}), F::AvgPool2dFuncOptions(2));
       }},
      {"max_pool2d",
       [] {
         return F::max_pool2d(x({2, 3, 4, 4}), F::MaxPool2dFuncOptions(2));
       }},
      {"max_unpool2d",
       [] {
         const auto [y, i] = F::max_pool2d_with_indices(
             x({2, 3, 4, 4}), F::MaxPool2dFuncOptions(2));
         return F::max_unpool2d(y, i, F::MaxUnpool2dFuncOptions(2));
       }},
      {"adaptive_avg_pool2d",
       [] {
         return F::adaptive_avg_pool2d(
             x({2, 3, 5, 4}), F::AdaptiveAvgPool2dFuncOptions({2, 3}));
       }},
      {"adaptive_max_pool1d",
       [] {
         return F::adaptive_max_pool1d(
             x({2, 3, 5}), F::AdaptiveMaxPool1dFuncOptions(2));
       }},
      {"lp_pool1d",
       [] {
         return F::lp_pool1d(x({2, 3, 4}), F::LPPool1dFuncOptions(2, 2));
       }},
      {"interpolate",
       [] {
         return F::interpolate(
             x({2, 3, 4, 4}),
             F::InterpolateFuncOptions()
                 .size(std::vector<int64_t>{6, 5})
                 .mode(torch::kBilinear)
                 .align_corners(false));
       }},
      {"pixel_shuffle",
       [] {
         return F::pixel_shuffle(
             x({2, 8, 3, 3}), F::PixelShuffleFuncOptions(2));
       }},
      {"unfold",
       [] {
         return F::unfold(x({2, 3, 4, 4}), F::UnfoldFuncOptions(2));
       }},
      {"fold",
       [] {
         return F::fold(x({2, 12, 9}), F::FoldFuncOptions({4, 4}, {2, 2}));
       }},
      {"constant pad",
       [] {
         return F::pad(x({2, 3, 4}), F::PadFuncOptions({1, 2}));
       }},
      {"reflect pad",
       [] {
         return F::pad(
             x({2, 3, 4}), F::PadFuncOptions({1, 2}).mode(torch::kReflect));
       }},
      {"replicate pad",
       [] {
         return F::pad(
             x({2, 3, 4}), F::PadFuncOptions({1, 2}).mode(torch::kReplicate));
       }},
      {"circular pad",
       [] {
         return F::pad(
             x({2, 3, 4}), F::PadFuncOptions({1, 2}).mode(torch::kCircular));
       }},
      {"affine_grid",
       [] {
         return F::affine_grid(x({2, 2, 3}), {2, 3, 4, 4});
       }},
      {"grid_sample",
       [] {
         return F::grid_sample(x({2, 3, 4, 4}), x({2, 3, 3, 2}));
       }},
  };
}

Calls along_dims() {
  using at::Tensor;
  return {
      {"max",
       [] {
         return std::get<0>(x({3, 4}).max(1));
       }},
      {"min",
       [] {
         return std::get<0>(x({3, 4}).min(0, true));
       }},
      {"median",
       [] {
         return std::get<0>(x({3, 4}).median(1));
       }},
      {"nanmedian",
       [] {
         return std::get<0>(x({3, 4}).nanmedian(1));
       }},
      {"mode",
       [] {
         return std::get<0>(x({3, 4}).mode(1));
       }},
      {"kthvalue",
       [] {
         return std::get<0>(x({3, 4}).kthvalue(2, 1));
       }},
      {"topk",
       [] {
         return std::get<0>(x({3, 4}).topk(2, 1));
       }},
      {"sort",
       [] {
         return std::get<0>(x({3, 4}).sort(1));
       }},
      {"msort",
       [] {
         return x({3, 4}).msort();
       }},
      {"whole max",
       [] {
         return x({3, 4}).max();
       }},
      {"whole median",
       [] {
         return x({3, 4}).median();
       }},
      {"cummax",
       [] {
         return std::get<0>(x({3, 4}).cummax(1));
       }},
      {"cummin",
       [] {
         return std::get<0>(x({3, 4}).cummin(0));
       }},
      {"cumprod",
       [] {
         return x({3, 4}).cumprod(1);
       }},
      {"logcumsumexp",
       [] {
         return x({3, 4}).logcumsumexp(1);
       }},
      {"prod",
       [] {
         return x({3, 4}).prod(1);
       }},
      {"amax",
       [] {
         return x({3, 4}).amax(1);
       }},
      {"aminmax",
       [] {
         return std::get<0>(at::aminmax(x({3, 4}), 1));
       }},
      {"std",
       [] {
         return x({3, 4}).std(1);
       }},
      {"renorm",
       [] {
         return x({3, 4}).renorm(2, 0, 1);
       }},
      {"quantile",
       [] {
         return x({3, 4}).quantile(0.5, 1);
       }},
      {"one_hot", [] { return at::one_hot(whole_integers({3}, 4)); }},
      {"gather",
       [] {
         return x({3, 4}).gather(1, whole_integers({3, 2}, 4));
       }},
      {"take",
       [] {
         return x({3, 4}).take(whole_integers({5}, 12));
       }},
      {"index",
       [] {
         return x({3, 4}).index({whole_integers({5}, 3)});
       }},
      {"index_select",
       [] {
         return x({3, 4}).index_select(1, whole_integers({5}, 4));
       }},
      {"index_add",
       [] {
         return x({3, 4}).index_add(0, whole_integers({2}, 3), x({2, 4}));
       }},
      {"scatter_add",
       [] {
         return x({3, 4}).scatter_add(1, whole_integers({3, 2}, 4), x({3, 2}));
       }},
      {"masked_fill",
       [] {
         return x({3, 4}).masked_fill(signs({3, 4}).gt(0), 2);
       }},
      {"where",
       [] {
         return at::where(signs({3, 4}).gt(0), x({3, 4}), 1.0);
       }},
      {"unfold dim",
       [] {
         return x({3, 6}).unfold(1, 2, 2);
       }},
      {"repeat_interleave",
       [] {
         return x({3, 4}).repeat_interleave(2, 1);
       }},
      {"roll",
       [] {
         return x({3, 4}).roll({1, 2}, {0, 1});
       }},
      {"diag_embed",
       [] {
         return x({3, 4}).diag_embed();
       }},
      {"diagonal",
       [] {
         return x({3, 4}).diagonal();
       }},
      {"tril",
       [] {
         return x({3, 4}).tril();
       }},
      {"trace",
       [] {
         return x({4, 4}).trace();
       }},
      {"cross",
       [] {
         return at::cross(x({4, 3}), x({4, 3}), 1);
       }},
      {"trapezoid",
       [] {
         return at::trapezoid(x({3, 4}));
       }},
      {"diff",
       [] {
         return x({3, 4}).diff();
       }},
      {"select and in-place",
       [] {
         auto y = x({3, 4}) * 1;
         y.select(0, 1).mul_(2);
         y.index_put_({whole_integers({2}, 3)}, x({2, 4}));
         return y;
       }},
  };
}

Calls products() {
  return {
      {"bilinear",
       [] {
         return F::bilinear(x({3, 4}), x({3, 5}), x({2, 4, 5}));
       }},
      {"einsum",
       [] {
         return at::einsum("bij,bjk->bik", {x({2, 3, 4}), x({2, 4, 3})});
       }},
      {"tensordot",
       [] {
         return at::tensordot(x({3, 4, 2}), x({4, 3, 2}), {1, 0}, {0, 1});
       }},
      {"kron",
       [] {
         return at::kron(x({2, 2}), x({3, 2}));
       }},
      {"chain_matmul",
       [] {
         return at::linalg_multi_dot({x({2, 3}), x({3, 4}), x({4, 2})});
       }},
      {"cdist",
       [] {
         return at::cdist(x({3, 4}), x({5, 4}));
       }},
      {"cdist of order 1",
       [] {
         return at::cdist(x({3, 4}), x({5, 4}), 1);
       }},
      {"large cdist",
       [] {
         return at::cdist(x({30, 4}), x({31, 4}));
       }},
      {"pdist",
       [] {
         return at::pdist(x({4, 3}));
       }},
      {"cosine_similarity",
       [] {
         return F::cosine_similarity(x({3, 4}), x({3, 4}));
       }},
      {"pairwise_distance",
       [] {
         return F::pairwise_distance(x({3, 4}), x({3, 4}));
       }},
      {"inv", [] { return at::linalg_inv(symmetric()); }},
      {"det", [] { return at::linalg_det(symmetric()); }},
      {"logdet", [] { return at::logdet(symmetric()); }},
      {"cholesky", [] { return at::linalg_cholesky(symmetric()); }},
      {"qr", [] { return std::get<0>(at::linalg_qr(symmetric())); }},
      {"svd", [] { return std::get<1>(at::linalg_svd(symmetric(), false)); }},
      {"eigh", [] { return std::get<0>(at::linalg_eigh(symmetric())); }},
      {"solve",
       [] {
         return at::linalg_solve(symmetric(), x({4, 2}));
       }},
      {"pinv", [] { return at::linalg_pinv(symmetric()); }},
      {"matrix_exp", [] { return at::linalg_matrix_exp(symmetric()); }},
      {"matrix_power", [] { return at::linalg_matrix_power(symmetric(), 3); }},
      {"matrix_norm",
       [] { return at::linalg_matrix_norm(symmetric(), "nuc"); }},
      {"spectral norm", [] { return at::linalg_matrix_norm(symmetric(), 2); }},
      {"causal attention with dropout",
       [] {
         return at::scaled_dot_product_attention(
             x({2, 2, 3, 4}), x({2, 2, 3, 4}), x({2, 2, 3, 4}), {}, 0.3, true);
       }},
      {"embedding with max_norm",
       [] {
         return F::embedding(
             whole_integers({3}, 5),
             x({5, 4}).detach().requires_grad_(),
             F::EmbeddingFuncOptions().max_norm(1.0));
       }},
      {"embedding_bag",
       [] {
         return F::embedding_bag(whole_integers({3, 2}, 5), x({5, 4}));
       }},
      {"fft",
       [] {
         return at::real(at::fft_fft(x({3, 4})));
       }},
      {"combinations", [] { return at::combinations(x({4})); }},
      {"cartesian_prod",
       [] {
         return at::cartesian_prod({x({4}), x({3})});
       }},
      {"meshgrid",
       [] {
         return at::meshgrid({x({4}), x({3})}, "ij")[0];
       }},
      {"logsumexp",
       [] {
         return x({3, 4}).logsumexp(1);
       }},
      {"nan_to_num",
       [] {
         return x({3, 4}).nan_to_num();
       }},
      {"cov",
       [] {
         return x({3, 4}).cov();
       }},
      {"corrcoef",
       [] {
         return x({3, 4}).corrcoef();
       }},
      {"xlogy",
       [] {
         return at::xlogy(x({3, 4}), positive({3, 4}));
       }},
  };
}

std::string run(const Call& call) {
  try {
    const auto y = call();
    if (y.requires_grad()) {
      y.sum().backward();
    }
    return {};
  } catch (const std::exception& error) {
    return mesh::message_of(error);
  }
}

TEST(StrictMixing, LibtorchsOwnPlainTensorsNeverReachTheUser) {
  manual_seed(one_rank(), 1);
  for (const auto& calls :
       {activations(), losses(), planes(), along_dims(), products()}) {
    for (const auto& [name, call] : calls) {
      const auto error = run(call);
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
      if (name == "aminmax") { // It had no derivative.
        EXPECT_THAT(error, ::testing::HasSubstr("is not implemented"));
        continue;
      }
#endif
      EXPECT_EQ(error, "") << name;
    }
  }
}

} // namespace
} // namespace weft::dtensor
