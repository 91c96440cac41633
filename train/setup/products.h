#pragma once

#include <string>

#include "config/recipe.h"
#include "matmul/library.h"

namespace weft::recipes {

/// Lets the library multiply that `recipe.products` names (matmul/library.h),
/// after `auto` has been replaced by the choice for this host and the recipe's
/// dtype. On a CUDA device `auto` is libtorch. No communication: ranks compare
/// the result with the rest of the recipe.
/// Throws: mesh::UsageError at the key if this host cannot do what it asks for.
void resolve_products(
    Recipe& recipe,
    const matmul::Host& host = matmul::this_host());

/// A library that `products` names, if this host can have it, else "libtorch".
std::string possible_products(const std::string& products);

/// "products: onednn (MKL keeps to AVX2 on this processor)", for the user.
std::string products_text(const Recipe& recipe);

} // namespace weft::recipes
