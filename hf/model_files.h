#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::hf {

/// A tensor of a folder: its file, position and type.
struct FileTensor {
  std::string file;
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<int64_t> shape;
  /// The byte range in the file.
  int64_t begin = 0;
  int64_t end = 0;
};

/// The weights of a Hugging Face folder: model.safetensors, or the files listed
/// in model.safetensors.index.json. Opens no file outside the folder and no
/// symbolic link.
class ModelFiles {
 public:
  /// Reads the headers of all files.
  /// Throws: mesh::UsageError if the folder does not exist or has no weights;
  /// checkpoint::CheckpointError naming file and byte, if a file is damaged.
  explicit ModelFiles(const std::filesystem::path& folder);
  ModelFiles(ModelFiles&&) noexcept;
  ~ModelFiles();

  const std::filesystem::path& folder() const;
  /// The tensors by name.
  const std::map<std::string, FileTensor>& tensors() const;
  /// A sentence if there is an ignored index next to model.safetensors,
  /// otherwise "".
  const std::string& notice() const;
  /// Tensors that the index lists and their file does not have: "name (file)".
  const std::vector<std::string>& absent() const;

  /// Reads the box of a 1-D or 2-D tensor that begins at `offset` into `out`,
  /// which has the box's shape, any strides and any floating dtype. Reads only
  /// the bytes of the box, row by row if they are not contiguous, and buffers
  /// one block.
  /// Throws: checkpoint::CheckpointError if the file was truncated;
  /// mesh::UsageError naming file, tensor and index if a finite value would
  /// become infinite in the dtype of `out`.
  void read_box(
      const std::string& name,
      const std::vector<int64_t>& offset,
      const at::Tensor& out) const;

  /// The number of bytes that read_box() has read.
  int64_t bytes_read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::hf
