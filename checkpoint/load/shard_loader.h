#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/load/load_selection.h"
#include "checkpoint/tensors/tensor_file.h"

namespace weft::checkpoint {

/// Thrown if a value in the checkpoint does not fit the dtype to load it into.
/// It does not mean that the checkpoint is damaged.
class ConversionError : public c10::ValueError {
  using c10::ValueError::ValueError;
};

/// Loads the parts of one rank, one tensor at a time: buffer(), then read() or
/// values from another rank, then convert(); and commit() at the end.
/// Lifetime: `folder`, `manifest` and `targets` must outlive this object.
class ShardLoader {
 public:
  ShardLoader(
      const Folder& folder,
      const Manifest& manifest,
      const std::vector<LoadTarget>& targets,
      bool all_or_nothing);

  /// Returns a buffer for this rank's part of target `i`, in the checkpoint's
  /// dtype, contiguous, on the CPU. It is the tensor itself if values may be
  /// read into it directly.
  at::Tensor buffer(size_t i);
  /// Fills buffer(i) from files.
  /// Throws: CheckpointError if the data is missing or damaged.
  void read(size_t i);
  /// Converts the values in buffer(i), and writes them to the tensor unless
  /// all_or_nothing is set.
  /// Throws: ConversionError if a value does not fit.
  void convert(size_t i);
  /// Writes the values to the tensors. To be called after all ranks have all
  /// values.
  void commit();

  int64_t bytes_read() const { return reader_.bytes_read(); }

 private:
  ChunkReader reader_;
  const std::vector<LoadTarget>& targets_;
  bool all_or_nothing_;
  /// The buffers of targets that are not converted yet.
  std::vector<at::Tensor> buffers_;
  /// The tensors to write at commit(), with their values.
  std::vector<std::pair<at::Tensor, at::Tensor>> staged_;
};

} // namespace weft::checkpoint
