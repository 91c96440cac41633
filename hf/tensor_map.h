#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/recipe.h"

namespace weft::recipes::hub {

/// A box of one of our tensors, and where it lies in one of Hugging Face's.
struct Piece {
  std::string hub_name;
  /// Of the box in our tensor.
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  /// Where the box begins in Hugging Face's tensor, whose dims are the last of
  /// ours; swapped if `transposed`. The box's size in our other dims is 1.
  std::vector<int64_t> hub_offset;
  bool transposed = false;
};

struct ModelTensor {
  std::vector<int64_t> shape;
  /// Tile it exactly.
  std::vector<Piece> pieces;
};

/// Which region of which tensor of a Hugging Face folder each parameter is.
struct TensorMap {
  /// By our names.
  std::map<std::string, ModelTensor> model;
  /// Shapes by Hugging Face's names.
  std::map<std::string, std::vector<int64_t>> hub;
  /// Tensors of the folder that are copies: the name, and what of. They may be
  /// there or not.
  std::map<std::string, std::string> copies;
  /// What the names of the folder begin with, and may begin without.
  std::string prefix;
};

/// Throws: mesh::UsageError naming `source` if a model of type llama, gpt2 or
/// moe has more tensors there than a checkpoint can have.
void check_tensor_count(const ModelConfig& model, const std::string& source);

/// For a model of type llama, gpt2 or moe.
TensorMap tensor_map(const ModelConfig& model);

/// Whether a tensor of that name is a buffer that nobody needs, written by
/// older versions of transformers.
bool is_obsolete_buffer(std::string_view hub_name);

} // namespace weft::recipes::hub
