#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/load/load_selection.h"
#include "checkpoint/tensors/tensor_file.h"

namespace weft::checkpoint {

/// A value in the checkpoint does not fit the dtype that it is to be loaded
/// into: no damage.
class ConversionError : public c10::ValueError {
  using c10::ValueError::ValueError;
};

/// Brings the values of one rank's parts from files to where they belong, a
/// tensor at a time: buffer(), then read() or values from another rank, then
/// convert(); at the end commit().
/// Lifetime: the folder's, the manifest's and the targets'.
class ShardLoader {
 public:
  ShardLoader(
      const Folder& folder,
      const Manifest& manifest,
      const std::vector<LoadTarget>& targets,
      bool all_or_nothing);

  /// This rank's part of target `i` in the checkpoint's dtype, contiguous, on
  /// the CPU: the tensor itself where values may be read there at once.
  at::Tensor buffer(size_t i);
  /// Fills buffer(i) from files. Throws: CheckpointError.
  void read(size_t i);
  /// buffer(i) has its values: converts them, and unless all_or_nothing puts
  /// them in place. Throws: ConversionError.
  void convert(size_t i);
  /// Once all ranks have all values.
  void commit();

  int64_t bytes_read() const { return reader_.bytes_read(); }

 private:
  ChunkReader reader_;
  const std::vector<LoadTarget>& targets_;
  bool all_or_nothing_;
  /// Of targets that are not settled yet.
  std::vector<at::Tensor> buffers_;
  /// Where values are to go, and they.
  std::vector<std::pair<at::Tensor, at::Tensor>> staged_;
};

} // namespace weft::checkpoint
