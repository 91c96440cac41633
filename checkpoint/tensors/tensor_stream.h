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

/// A piece of a tensor to be written, whose bytes come later.
struct StreamedTensor {
  std::string key;
  at::ScalarType dtype = at::ScalarType::Float;
  /// Of the piece, and where it lies in the whole tensor.
  std::vector<int64_t> shape;
  std::vector<int64_t> offset;
  std::vector<int64_t> global_shape;
};

/// Writes what write_tensor_file() writes of tensors that do not fit in memory:
/// one piece (WriteOptions::piece_bytes) of them is held.
class TensorStream {
 public:
  /// Makes the file, takes its room on the disk and writes its header.
  /// Throws: as write_tensor_file().
  TensorStream(
      const Folder& folder,
      std::string name,
      const std::vector<StreamedTensor>& tensors,
      const WriteOptions& options);

  /// Indices of `tensors` in the order in which their bytes must come.
  const std::vector<size_t>& order() const { return order_; }

  /// The next bytes; may end inside of a tensor, and not go beyond its end.
  void append(std::span<const std::byte> bytes);

  /// All bytes have come. Throws: std::system_error with path and errno.
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

/// Goes through a row-major tensor of `shape` in boxes of at most `max_bytes`,
/// one run of its bytes each, from the first to the last.
void for_each_run(
    const std::vector<int64_t>& shape,
    int64_t item_bytes,
    int64_t max_bytes,
    const std::function<void(
        const std::vector<int64_t>& offset,
        const std::vector<int64_t>& shape)>& visit);

} // namespace weft::checkpoint
