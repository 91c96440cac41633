#pragma once

#include <string>

#include "config/recipe.h"
#include "matmul/library.h"

namespace weft::train {

/// Selects the matmul library of `recipe.products` (matmul/library.h). First
/// replaces `auto` by the choice for this host and the recipe's dtype; on a
/// CUDA device this is libtorch. Does not communicate: ranks compare the result
/// together with the rest of the recipe.
/// Throws: mesh::UsageError, naming the recipe key, if this host does not
/// support the library.
void resolve_products(
    config::Recipe& recipe,
    const matmul::Host& host = matmul::this_host());

/// Returns `products` if this host supports oneDNN, otherwise kLibtorch.
config::Products possible_products(config::Products products);

/// Returns "products: onednn (MKL keeps to AVX2 on this processor)", for the
/// user.
std::string products_text(const config::Recipe& recipe);

} // namespace weft::train
