#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "config/recipe.h"
#include "hf/box.h"
#include "hf/model_files.h"
#include "hf/tensor_map.h"

namespace weft::hf {

/// Returns the names in the folder of the tensors of `map`, by their full
/// names.
std::map<std::string, std::string> names_in(
    const ModelFiles& files,
    const TensorMap& map);

/// Reads boxes of our parameters from a Hugging Face folder.
class WeightReader {
 public:
  /// Opens the folder and checks its tensors against `model`. Error messages
  /// begin with `place`, e.g. the position of the recipe key that names the
  /// folder.
  /// Throws: mesh::UsageError if the folder does not exist, or its tensors do
  /// not match `model`, listing all that are missing, unexpected or of another
  /// shape; checkpoint::CheckpointError if a file is damaged.
  WeightReader(
      const config::ModelConfig& model,
      const std::filesystem::path& folder,
      std::string place);

  const TensorMap& map() const { return map_; }

  /// Fills `out` with the box `own` of the parameter `name`.
  /// Throws: checkpoint::CheckpointError if a file was truncated;
  /// mesh::UsageError if a copy of the tensor differs from it.
  void read(const std::string& name, const Box& own, const at::Tensor& out)
      const;

  /// See ModelFiles::notice().
  const std::string& notice() const { return files_.notice(); }

  int64_t bytes_read() const { return files_.bytes_read(); }

 private:
  void check_tensors() const;
  void check_copy(
      const std::string& copy,
      const std::string& original_name,
      const Sizes& offset,
      const at::Tensor& original) const;
  [[noreturn]] void refuse_folder(const std::string& what) const;

  std::string place_;
  ModelFiles files_;
  TensorMap map_;
  std::map<std::string, std::string> names_;
};

} // namespace weft::hf
