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

namespace weft::recipes::hub {

/// A tensor of a folder, where it lies and what it is.
struct FileTensor {
  std::string file;
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<int64_t> shape;
  /// Bytes of the file.
  int64_t begin = 0;
  int64_t end = 0;
};

/// The weights of a Hugging Face folder: model.safetensors, or the files that
/// model.safetensors.index.json names. Nothing outside of the folder is opened,
/// nor a symbolic link.
class ModelFiles {
 public:
  /// Reads the headers of all files.
  /// Throws: mesh::UsageError if there is no such folder or it holds no
  /// weights; checkpoint::CheckpointError naming file and byte if one is
  /// damaged.
  explicit ModelFiles(const std::filesystem::path& folder);
  ModelFiles(ModelFiles&&) noexcept;
  ~ModelFiles();

  const std::filesystem::path& folder() const;
  /// By name.
  const std::map<std::string, FileTensor>& tensors() const;
  /// A sentence if there is an index beside model.safetensors, which is then
  /// not read; else "".
  const std::string& notice() const;
  /// What the index names and its file has not: "name (file)".
  const std::vector<std::string>& absent() const;

  /// Reads the box of a tensor of one or two dims that begins at `offset` into
  /// `out`, of the box's shape, any strides and any floating dtype. Reads only
  /// the bytes of the box, row by row where they do not adjoin, and holds no
  /// more than a block of them.
  /// Throws: checkpoint::CheckpointError if the file has become shorter.
  void read_box(
      const std::string& name,
      const std::vector<int64_t>& offset,
      const at::Tensor& out) const;

  /// Bytes read by read_box() so far.
  int64_t bytes_read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::recipes::hub
