// Products with oneDNN, on plain tensors: the same numbers as libtorch's up to
// rounding, and libtorch's own where oneDNN is not asked.

#include <limits>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/version.h>

#include "matmul/library.h"
#include "matmul/onednn.h"

namespace weft::matmul {
namespace {

class MatmulProducts : public testing::Test {
 protected:
  void SetUp() override {
    if (!this_host().onednn_problem.empty()) {
      GTEST_SKIP() << this_host().onednn_problem;
    }
    torch::manual_seed(7);
    set_library(Library::kOneDnn);
  }
  void TearDown() override { set_library(Library::kLibtorch); }
};

// Large enough for oneDNN, of sizes that no vector divides.
constexpr int64_t kM = 131;
constexpr int64_t kK = 137;
constexpr int64_t kN = 121;

template <class Op>
auto with(Library choice, const Op& op) {
  set_library(choice);
  const auto result = op();
  set_library(Library::kOneDnn);
  return result;
}

template <class Op>
void expect_close_to_float64(const at::Tensor& result, const Op& op) {
  const auto expected = with(Library::kLibtorch, op);
  EXPECT_EQ(result.scalar_type(), at::kFloat);
  EXPECT_TRUE(result.sizes() == expected.sizes());
  EXPECT_TRUE(at::allclose(result.to(at::kDouble), expected, 1e-5, 1e-4))
      << (result - expected).abs().max().template item<double>();
}

// As libtorch has it bitwise, strides included.
template <class Op>
void expect_libtorchs(const Op& op) {
  const auto expected = with(Library::kLibtorch, op);
  const auto result = op();
  EXPECT_EQ(result.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(result.sizes() == expected.sizes());
  EXPECT_TRUE(result.strides() == expected.strides());
  EXPECT_TRUE(result.is_meta() || at::equal(result, expected));
}

template <class Op>
void expect_libtorchs_error(const Op& op) {
  const auto message = [&] {
    try {
      op();
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("no error");
  };
  const auto expected = with(Library::kLibtorch, message);
  EXPECT_NE(expected, "no error");
  EXPECT_EQ(message(), expected);
}

at::Tensor f64(const at::Tensor& tensor) {
  return tensor.to(at::kDouble);
}

// The operand forms of a linear layer and its gradients, and odd ones.
std::vector<at::Tensor> forms_of(int64_t rows, int64_t columns) {
  return {
      at::randn({rows, columns}),
      at::randn({columns, rows}).t(),
      at::randn({rows, columns + 5}).narrow(1, 3, columns),
      at::randn({2 * rows, 3 * columns}).slice(0, 0, {}, 2).slice(1, 1, {}, 3),
      at::randn({1, columns}).expand({rows, columns})};
}

TEST_F(MatmulProducts, OfOperandsOfAnyStrides) {
  for (const auto& a : forms_of(kM, kK)) {
    for (const auto& b : forms_of(kK, kN)) {
      const auto product = at::mm(a, b);
      EXPECT_TRUE(at::equal(product, onednn::multiply(a, b)));
      EXPECT_TRUE(product.is_contiguous());
      expect_close_to_float64(product, [&] { return at::mm(f64(a), f64(b)); });
    }
  }
}

// A tensor whose numbers count with the other sign.
TEST_F(MatmulProducts, OfNegatedViews) {
  const auto a = at::randn({kM, kK});
  const auto b = at::randn({kK, kN});
  EXPECT_TRUE(at::equal(at::mm(at::_neg_view(a), b), at::mm(-a, b)));
}

TEST_F(MatmulProducts, WithWhatTheyAreAddedTo) {
  const auto a = at::randn({kM, kK});
  const auto b = at::randn({kK, kN});
  for (const auto& addend :
       {at::randn({kN}),
        at::randn({kM, 1}),
        at::randn({kM, kN}),
        at::randn({kN, kM}).t(),
        at::randn({1})}) {
    expect_close_to_float64(at::addmm(addend, a, b), [&] {
      return at::addmm(f64(addend), f64(a), f64(b));
    });
    auto out = at::empty({kM, kN});
    at::addmm_out(out, addend, a, b);
    EXPECT_TRUE(at::equal(out, at::addmm(addend, a, b)));
  }
  const auto start = at::randn({kM, kN});
  auto sum = start.clone();
  sum.addmm_(a, b);
  EXPECT_TRUE(at::equal(sum, at::addmm(start, a, b)));
  auto same = start.clone();
  at::addmm_out(same, same, a, b);
  EXPECT_TRUE(at::equal(same, sum));
}

TEST_F(MatmulProducts, OfBatches) {
  const auto a = at::randn({9, kM, 31});
  const auto b = at::randn({9, kN, 31}).transpose(1, 2);
  const auto addend = at::randn({9, 1, kN});
  expect_close_to_float64(
      at::bmm(a, b), [&] { return at::bmm(f64(a), f64(b)); });
  expect_close_to_float64(at::baddbmm(addend, a, b), [&] {
    return at::baddbmm(f64(addend), f64(a), f64(b));
  });
  auto out = at::empty({9, kM, kN});
  at::bmm_out(out, a, b);
  EXPECT_TRUE(at::equal(out, at::bmm(a, b)));
}

TEST_F(MatmulProducts, OfLinearLayersAndTheirGradients) {
  const auto run = [](at::ScalarType dtype, bool with_bias) {
    torch::manual_seed(1);
    const auto x = at::randn({4, 40, kK}).to(dtype).requires_grad_();
    const auto w = at::randn({kN, kK}).to(dtype).requires_grad_();
    const auto b = at::randn({kN}).to(dtype).requires_grad_();
    const auto y = with_bias ? at::linear(x, w, b) : at::linear(x, w);
    y.square().sum().backward();
    std::vector<at::Tensor> results{y.detach(), x.grad(), w.grad()};
    if (with_bias) {
      results.push_back(b.grad());
    }
    return results;
  };
  for (const bool with_bias : {false, true}) {
    const auto results = run(at::kFloat, with_bias);
    const auto expected = run(at::kDouble, with_bias);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(at::allclose(f64(results[i]), expected[i], 1e-4, 1e-2)) << i;
    }
  }
}

TEST_F(MatmulProducts, OfGradientsOfGradients) {
  const auto run = [](at::ScalarType dtype) {
    torch::manual_seed(1);
    const auto a = at::randn({kM, kK}).to(dtype).requires_grad_();
    const auto b = at::randn({kK, kN}).to(dtype).requires_grad_();
    const auto first = torch::autograd::grad(
        {a.mm(b).square().mean()}, {a, b}, {}, true, /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum()}, {a, b});
  };
  const auto results = run(at::kFloat);
  const auto expected = run(at::kDouble);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(at::allclose(f64(results[i]), expected[i], 1e-4, 1e-7)) << i;
  }
}

TEST_F(MatmulProducts, OfSmallMatricesAreLibtorchs) {
  for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{
           {8, 8, 8},
           {64, 64, 64},
           {1, 2048, 2048},
           {15, 256, 256},
           {2048, 3, 8192}}) {
    const auto a = at::randn({m, k});
    const auto b = at::randn({k, n});
    expect_libtorchs([&] { return at::mm(a, b); });
  }
  const auto a = at::randn({4, 16, 16});
  expect_libtorchs([&] { return at::bmm(a, a); });
}

TEST_F(MatmulProducts, OfOtherTensorsAreLibtorchs) {
  const auto a = at::randn({kM, kK});
  const auto b = at::randn({kK, kN});
  expect_libtorchs([&] { return at::mm(f64(a), f64(b)); });
  expect_libtorchs([&] { return at::mm(a.to(at::kLong), b.to(at::kLong)); });
  expect_libtorchs([&] { return at::mm(a.to(at::kHalf), b.to(at::kHalf)); });
  expect_libtorchs([&] { return at::mm(a.to("meta"), b.to("meta")); });
  expect_libtorchs([&] { return at::mm(at::empty({0, kK}), b); });
  expect_libtorchs([&] {
    return at::mm(at::empty({kM, 0}), at::empty({0, kN}));
  });
  expect_libtorchs([&] { return at::complex(a, a).mm(at::complex(b, b)); });
  expect_libtorchs([&] { return a.to_sparse().mm(b); });
}

TEST_F(MatmulProducts, ScaledOnesAreLibtorchs) {
  const auto a = at::randn({kM, kK});
  const auto b = at::randn({kK, kN});
  const auto c = at::randn({kM, kN});
  expect_libtorchs([&] { return at::addmm(c, a, b, 0.5, 1); });
  expect_libtorchs([&] { return at::addmm(c, a, b, 1, 2); });
  // Times 0, NaN does not count.
  const auto nan = at::full({kM, kN}, std::numeric_limits<float>::quiet_NaN());
  expect_libtorchs([&] { return at::addmm(nan, a, b, 0, 1); });
}

TEST_F(MatmulProducts, IntoOutputsThatOneDnnCannotWrite) {
  const auto a = at::randn({kM, kK});
  const auto b = at::randn({kK, kN});
  expect_libtorchs([&] {
    auto out = at::empty({kN, kM}).t();
    at::mm_out(out, a, b);
    return out;
  });
  expect_libtorchs([&] {
    auto out = at::empty({0});
    at::mm_out(out, a, b);
    return out;
  });
}

TEST_F(MatmulProducts, WrongCallsEndAsBefore) {
  const auto a = at::randn({kM, kK});
  const auto b = at::randn({kK, kN});
  expect_libtorchs_error([&] { at::mm(a, a); });
  expect_libtorchs_error([&] { at::mm(a, f64(b)); });
  expect_libtorchs_error([&] { at::addmm(at::randn({7}), a, b); });
  expect_libtorchs_error([&] { at::bmm(a, b); });
  expect_libtorchs_error([&] {
    auto out = at::empty({kM, kN}, at::kDouble);
    at::mm_out(out, a, b);
  });
}

TEST_F(MatmulProducts, OfAutocastAreBFloat16) {
  const auto a = at::randn({kM, kK});
  const auto b = at::randn({kK, kN});
  const auto run = [&] {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const auto product = at::mm(a, b);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return product;
  };
  EXPECT_EQ(run().scalar_type(), at::kBFloat16);
  if (this_host().has_bfloat16) {
    expect_libtorchs(run);
  }
}

// What parts of a batch on several ranks, and messages in parts, rely on.
TEST_F(MatmulProducts, OfSomeRowsAreThoseOfAll) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
  GTEST_SKIP() << "oneDNN in libtorch " TORCH_VERSION
                  " adds some rows in "
                  "another order than all";
#endif
  for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{
           {512, 256, 64}, {204, 48, 400}, {301, 1000, 333}}) {
    const auto a = at::randn({m, k});
    const auto b = at::randn({n, k}).t();
    const auto whole = at::mm(a, b);
    for (const int64_t parts : {2, 3, 8}) {
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t first = m * part / parts;
        const int64_t count = m * (part + 1) / parts - first;
        EXPECT_TRUE(at::equal(
            at::mm(a.narrow(0, first, count), b),
            whole.narrow(0, first, count)))
            << m << " rows, part " << part << " of " << parts;
      }
    }
  }
}

TEST_F(MatmulProducts, RepeatTheirBits) {
  const auto a = at::randn({256, 512});
  const auto b = at::randn({512, 256});
  const auto first = at::mm(a, b);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(at::equal(at::mm(a.clone(), b.clone()), first));
  }
}

} // namespace
} // namespace weft::matmul
