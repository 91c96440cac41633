#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/recipe.h"

namespace weft::hf {

/// A box of one of our tensors, and its place in a Hugging Face tensor.
struct Piece {
  std::string hub_name;
  /// The box in our tensor.
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  /// The start of the box in the Hugging Face tensor, whose dims are the last
  /// ones of ours, swapped if `transposed`. In our other dims the box has size
  /// 1.
  std::vector<int64_t> hub_offset;
  bool transposed = false;
};

struct ModelTensor {
  std::vector<int64_t> shape;
  /// The pieces, which tile the tensor exactly.
  std::vector<Piece> pieces;
};

/// Maps each parameter to regions of the tensors of a Hugging Face folder.
struct TensorMap {
  /// The shape and the pieces of each parameter, by Weft's names.
  std::map<std::string, ModelTensor> model;
  /// The shapes of the folder's tensors, by Hugging Face names.
  std::map<std::string, std::vector<int64_t>> hub;
  /// Optional tensors of the folder that are copies: their name, and the name
  /// of the original.
  std::map<std::string, std::string> copies;
  /// The optional prefix of the names in the folder.
  std::string prefix;
};

/// Throws: mesh::UsageError naming `source`, if a model of type llama, gpt2 or
/// moe has more tensors than a checkpoint can have.
void check_tensor_count(
    const config::ModelConfig& model,
    const std::string& source);

/// Returns the map of a model of type llama, gpt2 or moe.
TensorMap tensor_map(const config::ModelConfig& model);

/// Returns true if a tensor of that name is an unused buffer written by older
/// versions of transformers.
bool is_obsolete_buffer(std::string_view hub_name);

} // namespace weft::hf
