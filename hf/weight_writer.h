#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/files/folder.h"

namespace weft::recipes::hub {

/// A tensor to write.
struct Planned {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<int64_t> shape;

  int64_t bytes() const;
};

/// A safetensors file as transformers writes it, of tensors that come one
/// after the other, in blocks. Wider dtypes have to come first.
class WeightWriter {
 public:
  /// Makes the file and writes its header.
  /// Throws: std::system_error with path and errno.
  WeightWriter(
      const checkpoint::Folder& folder,
      const std::string& name,
      const std::vector<Planned>& tensors);

  /// The next bytes: a contiguous tensor on the CPU.
  void append(const at::Tensor& block);

  /// All is on the disk when it returns.
  void finish();

 private:
  checkpoint::File file_;
  int64_t position_ = 0;
  int64_t end_ = 0;
};

/// Cut in files of at most `max_bytes`, unless one tensor has more; wider
/// dtypes first, so that each tensor is aligned. At least one file.
std::vector<std::vector<Planned>> plan_shards(
    std::vector<Planned> tensors,
    int64_t max_bytes);

/// "model.safetensors", or "model-00001-of-00003.safetensors".
std::string shard_name(size_t index, size_t count);

/// Writes model.safetensors.index.json, unless there is one file only.
void write_shard_index(
    const checkpoint::Folder& folder,
    const std::vector<std::vector<Planned>>& shards);

/// Writes a whole small file, to the disk.
void write_small_file(
    const checkpoint::Folder& folder,
    const std::string& name,
    const std::string& text);

} // namespace weft::recipes::hub
