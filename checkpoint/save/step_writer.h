#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/files/folder.h"
#include "checkpoint/files/progress.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/store/store.h"
#include "checkpoint/tensors/tensor_file.h"
#include "checkpoint/tensors/tensor_stream.h"

namespace weft::checkpoint {

/// The options of StepWriter. The step number is that of the manifest.
struct StepWriterOptions {
  /// See WriteOptions.
  bool fsync = true;
  bool sha256 = false;
  /// The key of the manifest's HMAC-SHA256. A key enables `sha256`. Empty
  /// disables the HMAC.
  std::string hmac_key = {};
};

/// Writes a checkpoint from one process, with tensors that are stored elsewhere
/// and copied a few MiB at a time. The folder appears atomically at commit().
class StepWriter {
 public:
  /// Acquires the lock of `checkpoints`, which is created if it is missing.
  /// `manifest` has step, piece_bytes, state, layout and the tensors without
  /// chunks.
  /// Throws: mesh::UsageError if `checkpoints` cannot be written, already has
  /// that step, or is itself a checkpoint.
  StepWriter(
      const std::filesystem::path& checkpoints,
      Manifest manifest,
      StepWriterOptions options);
  ~StepWriter();
  StepWriter(const StepWriter&) = delete;
  StepWriter& operator=(const StepWriter&) = delete;

  /// Reads a box of the tensor with `index` in write_file(), at `offset` of the
  /// full tensor and with `shape`, into `out`.
  using ReadBox = std::function<void(
      size_t index,
      const std::vector<int64_t>& offset,
      const std::vector<int64_t>& shape,
      std::span<std::byte> out)>;

  /// Writes a file with `tensors`, which must not be empty. Calls `done` with
  /// the number of bytes that were just written.
  void write_file(
      const std::string& name,
      const std::vector<StreamedTensor>& tensors,
      const ReadBox& read,
      const std::function<void(int64_t bytes)>& done = {});

  /// Commits the step and returns its folder.
  /// Throws: like commit_step().
  std::filesystem::path commit();

  const Manifest& manifest() const { return manifest_; }

 private:
  std::filesystem::path checkpoints_;
  /// True if the folder or the lock file did not exist before. They are removed
  /// if nothing is committed.
  bool is_folder_new_;
  bool is_lock_new_;
  Manifest manifest_;
  StepWriterOptions options_;
  StoreLock lock_;
  std::filesystem::path temporary_;
  std::vector<std::byte> buffer_;
};

} // namespace weft::checkpoint
