#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include "config/recipe.h"

namespace weft::train {

/// Returns true if the module is a single op, such as a Linear, and not a block
/// of modules.
bool is_op(torch::nn::Module& module);

/// Returns the fully qualified names of the model's blocks: the elements of its
/// ModuleLists, except single ops (see is_op()).
std::vector<std::string> block_names(torch::nn::Module& model);

/// Returns the names of the modules that the patterns of a recipe key match,
/// each once and in the order of registration for each pattern.
/// Throws: mesh::UsageError at the key if a pattern matches no module.
std::vector<std::string> matching_names(
    const config::Recipe& recipe,
    std::string_view key,
    const std::vector<std::string>& patterns,
    torch::nn::Module& model);

} // namespace weft::train
