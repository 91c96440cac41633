#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files/folder.h"
#include "checkpoint/format/tensor_header.h"
#include "checkpoint/tensors/tensor_file.h"

namespace weft::checkpoint {

/// A box of a tensor to write, whose bytes are supplied later.
struct StreamedTensor {
  std::string key;
  at::ScalarType dtype = at::ScalarType::Float;
  /// The shape of the box, and its position in the full tensor.
  std::vector<int64_t> shape;
  std::vector<int64_t> offset;
  std::vector<int64_t> global_shape;
};

/// Writes the file that write_tensor_file() would write, for tensors that do
/// not fit in memory. Holds one piece (WriteOptions::piece_bytes) at a time.
class TensorStream {
 public:
  /// Creates the file, reserves its space on the disk and writes its header.
  /// Throws: like write_tensor_file().
  TensorStream(
      const Folder& folder,
      std::string name,
      const std::vector<StreamedTensor>& tensors,
      const WriteOptions& options);

  /// Returns the indices of `tensors` in the order in which their bytes must be
  /// appended.
  const std::vector<size_t>& order() const { return order_; }

  /// Appends the next bytes. They may end inside of a tensor, but must not
  /// exceed the last tensor.
  void append(std::span<const std::byte> bytes);

  /// Completes the file. All bytes must have been appended.
  /// Throws: std::system_error with path and errno.
  WrittenFile finish();

 private:
  void end_piece();
  void skip_finished();

  WriteOptions options_;
  File file_;
  WrittenFile written_;
  std::vector<size_t> order_;
  size_t current_ = 0;
  int64_t position_ = 0;
  std::vector<std::byte> piece_;
};

/// Visits a row-major tensor of `shape` in order, as boxes of at most
/// `max_bytes` that are each one contiguous range of its bytes.
void for_each_run(
    const std::vector<int64_t>& shape,
    int64_t item_bytes,
    int64_t max_bytes,
    const std::function<void(
        const std::vector<int64_t>& offset,
        const std::vector<int64_t>& shape)>& visit);

} // namespace weft::checkpoint
