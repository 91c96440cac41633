#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/files/folder.h"
#include "checkpoint/format/rounding.h"

namespace weft::hf {

/// A tensor to write.
struct Planned {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<int64_t> shape;

  int64_t bytes() const;
};

/// Writes a safetensors file like transformers, of consecutive tensors, in
/// blocks. Wider dtypes must come first.
class WeightWriter {
 public:
  /// Creates the file and writes its header.
  /// Throws: std::system_error with path and errno.
  WeightWriter(
      const checkpoint::Folder& folder,
      const std::string& name,
      const std::vector<Planned>& tensors);

  /// Appends the next bytes: a contiguous CPU tensor.
  void append(const at::Tensor& block);

  /// Completes the file. All data is on disk when this function returns.
  void finish();

 private:
  checkpoint::File file_;
  int64_t position_ = 0;
  int64_t end_ = 0;
};

/// Returns `block` rounded to the dtype in which it is written.
/// Throws: mesh::UsageError if a finite value would become infinite; it names
/// the tensor, the index, the value and the dtypes that hold it.
at::Tensor rounded_for_export(
    const at::Tensor& block,
    at::ScalarType dtype,
    const checkpoint::TensorPlace& place);

/// Splits tensors into files of at most `max_bytes`, unless a single tensor is
/// larger; wider dtypes first, so that each tensor is aligned. At least one
/// file.
std::vector<std::vector<Planned>> plan_shards(
    std::vector<Planned> tensors,
    int64_t max_bytes);

/// Returns "model.safetensors" or "model-00001-of-00003.safetensors".
std::string shard_name(size_t index, size_t count);

/// Writes model.safetensors.index.json if there is more than one file.
void write_shard_index(
    const checkpoint::Folder& folder,
    const std::vector<std::vector<Planned>>& shards);

/// Writes a small file to disk.
void write_small_file(
    const checkpoint::Folder& folder,
    const std::string& name,
    const std::string& text);

} // namespace weft::hf
