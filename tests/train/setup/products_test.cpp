#include "train/setup/products.h"

#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/support/expect_error.h"
#include "train/setup/validate.h"

namespace weft::train {
namespace {

matmul::Host host_with(const std::string& problem, bool has_bfloat16) {
  return {
      .processor_vendor = "AuthenticAMD",
      .has_mkl = true,
      .onednn_problem = problem,
      .has_bfloat16 = has_bfloat16};
}

class Products : public testing::Test {
 protected:
  void TearDown() override { matmul::set_library(matmul::Library::kLibtorch); }
};

TEST_F(Products, AutoBecomesTheRulesChoice) {
  config::Recipe recipe;
  resolve_products(recipe);
  const auto choice = matmul::choose_library(at::kFloat);
  EXPECT_EQ(to_string(recipe.products), matmul::to_string(choice.library));
  EXPECT_EQ(matmul::library(), choice.library);
  EXPECT_EQ(
      products_text(recipe),
      "products: " + std::string(to_string(recipe.products)) + " (" +
          choice.reason + ")");
}

TEST_F(Products, AutoIsLibtorchOnOtherDevices) {
  config::Recipe recipe;
  recipe.device = config::Device::kCuda;
  resolve_products(recipe, host_with("", true));
  EXPECT_EQ(recipe.products, config::Products::kLibtorch);
}

TEST_F(Products, AutoIsLibtorchWithoutOneDnn) {
  config::Recipe recipe;
  resolve_products(recipe, host_with("it was left out", true));
  EXPECT_EQ(recipe.products, config::Products::kLibtorch);
  EXPECT_EQ(matmul::library(), matmul::Library::kLibtorch);
}

TEST_F(Products, OneDnnThatCannotBeHadIsRefused) {
  config::Recipe recipe;
  recipe.origins.source = "r.yaml";
  recipe.products = config::Products::kOneDnn;
  EXPECT_EQ(
      test::message_of_thrown<mesh::UsageError>([&] {
        resolve_products(recipe, host_with("it was left out", true));
      }),
      "r.yaml: products: oneDNN cannot be used on this host: it was left out. "
      "Set products to libtorch or auto");
}

TEST_F(Products, SlowProductsOfBFloat16AreRefused) {
  config::Recipe recipe;
  recipe.origins.source = "r.yaml";
  recipe.train.dtype = config::TrainDtype::kBFloat16;
  recipe.products = config::Products::kLibtorch;
  EXPECT_EQ(
      test::message_of_thrown<mesh::UsageError>(
          [&] { resolve_products(recipe, host_with("", false)); }),
      "r.yaml: products: this processor cannot multiply bfloat16, and "
      "libtorch's emulation is tens of times slower than float32. Set "
      "train.dtype: float32, or products: onednn, which multiplies in float32 "
      "and rounds");
  EXPECT_NO_THROW(resolve_products(recipe, host_with("", true)));
}

} // namespace
} // namespace weft::train
