#include "train/setup/products.h"

#include <fmt/format.h>

#include "config/schema.h"
#include "train/setup/ddp_config.h"

namespace weft::train {
namespace {

constexpr const char* kKey = "products";

matmul::Choice choice_for(
    const config::Recipe& recipe,
    const matmul::Host& host) {
  if (recipe.device != config::Device::kCpu) {
    return {matmul::Library::kLibtorch, "the device is not the CPU"};
  }
  return matmul::choose_library(param_dtype(recipe).value_or(at::kFloat), host);
}

// Returns true if libtorch would emulate products of bfloat16, which takes tens
// of times as long as float32.
bool is_too_slow(
    const config::Recipe& recipe,
    matmul::Library library,
    const matmul::Host& host) {
  return recipe.device == config::Device::kCpu &&
         param_dtype(recipe) == at::kBFloat16 &&
         library == matmul::Library::kLibtorch && !host.has_bfloat16;
}

config::Products products_of(matmul::Library library) {
  return library == matmul::Library::kOneDnn ? config::Products::kOneDnn
                                             : config::Products::kLibtorch;
}

} // namespace

void resolve_products(config::Recipe& recipe, const matmul::Host& host) {
  if (recipe.products == config::Products::kAuto) {
    recipe.products = products_of(choice_for(recipe, host).library);
  }
  const auto library = recipe.products == config::Products::kOneDnn
                           ? matmul::Library::kOneDnn
                           : matmul::Library::kLibtorch;
  if (library == matmul::Library::kOneDnn && !host.onednn_problem.empty()) {
    config::refuse(
        recipe,
        kKey,
        fmt::format(
            "oneDNN cannot be used on this host: {}. Set products to libtorch "
            "or auto",
            host.onednn_problem));
  }
  if (is_too_slow(recipe, library, host)) {
    config::refuse(
        recipe,
        kKey,
        "this processor cannot multiply bfloat16, and libtorch's emulation is "
        "tens of times slower than float32. Set train.dtype: float32, or "
        "products: onednn, which multiplies in float32 and rounds");
  }
  matmul::set_library(library);
}

config::Products possible_products(config::Products products) {
  return matmul::this_host().onednn_problem.empty()
             ? products
             : config::Products::kLibtorch;
}

std::string products_text(const config::Recipe& recipe) {
  const auto choice = choice_for(recipe, matmul::this_host());
  const bool is_rules = products_of(choice.library) == recipe.products;
  return is_rules
             ? fmt::format("products: {} ({})", recipe.products, choice.reason)
             : fmt::format("products: {}", recipe.products);
}

} // namespace weft::train
