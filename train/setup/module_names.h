#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include "config/recipe.h"

namespace weft::recipes {

/// One op, such as a Linear: no block of others.
bool is_op(torch::nn::Module& module);

/// Fully qualified names of the model's blocks: all elements of module lists.
std::vector<std::string> block_names(torch::nn::Module& model);

/// Names of the modules that the patterns of a recipe's key match, in the order
/// of registration, each once.
/// Throws: mesh::UsageError at the key where a pattern matches none.
std::vector<std::string> matching_names(
    const Recipe& recipe,
    std::string_view key,
    const std::vector<std::string>& patterns,
    torch::nn::Module& model);

} // namespace weft::recipes
