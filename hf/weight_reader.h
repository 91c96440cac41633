#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "config/recipe.h"
#include "hf/box.h"
#include "hf/model_files.h"
#include "hf/tensor_map.h"

namespace weft::recipes::hub {

/// How the folder calls the tensors of `map` that it has, by their full names.
std::map<std::string, std::string> names_in(
    const ModelFiles& files,
    const TensorMap& map);

/// Reads boxes of our parameters out of a Hugging Face folder.
class WeightReader {
 public:
  /// `place`: what messages begin with.
  /// Throws: mesh::UsageError if there is no such folder, or its tensors are
  /// not those of `model`, listing all that are missing, not expected or of
  /// another shape; checkpoint::CheckpointError if a file is damaged.
  WeightReader(
      const ModelConfig& model,
      const std::filesystem::path& folder,
      std::string place);

  const TensorMap& map() const { return map_; }

  /// Fills `out` with the box `own` of the parameter `name`.
  /// Throws: checkpoint::CheckpointError if a file has become shorter;
  /// mesh::UsageError if what should be a copy of it is not.
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

} // namespace weft::recipes::hub
