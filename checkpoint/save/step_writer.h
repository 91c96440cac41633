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

struct StepWriterOptions {
  /// As WriteOptions'; `step` is the manifest's.
  bool sync = true;
  bool sha256 = false;
  /// Key of the manifest's HMAC-SHA256; turns `sha256` on. Empty: none.
  std::string hmac_key = {};
};

/// Writes a checkpoint from one process, out of tensors that lie elsewhere: the
/// rest of a step folder is copied a few MiB at a time. The folder appears
/// whole at commit(), or not at all.
class StepWriter {
 public:
  /// Takes the lock of `checkpoints`, which is made where it is missing.
  /// `manifest` has step, piece_bytes, state, layout and the tensors without
  /// chunks.
  /// Throws: mesh::UsageError if `checkpoints` cannot be written or has that
  /// step already, or is itself a checkpoint.
  StepWriter(
      const std::filesystem::path& checkpoints,
      Manifest manifest,
      StepWriterOptions options);
  ~StepWriter();
  StepWriter(const StepWriter&) = delete;
  StepWriter& operator=(const StepWriter&) = delete;

  /// Reads bytes of the tensor `index` of write_file(): the box at `offset`
  /// with `shape` of the whole tensor.
  using ReadBox = std::function<void(
      size_t index,
      const std::vector<int64_t>& offset,
      const std::vector<int64_t>& shape,
      std::span<std::byte> out)>;

  /// Writes a file of `tensors`, which is not empty. `done` is told of the
  /// bytes that are written.
  void write_file(
      const std::string& name,
      const std::vector<StreamedTensor>& tensors,
      const ReadBox& read,
      const std::function<void(int64_t bytes)>& done = {});

  /// Returns the step's folder. Throws: as commit_step().
  std::filesystem::path commit();

  const Manifest& manifest() const { return manifest_; }

 private:
  std::filesystem::path checkpoints_;
  /// What was not there before, and goes if nothing is committed.
  bool is_folder_new_;
  bool is_lock_new_;
  Manifest manifest_;
  StepWriterOptions options_;
  StoreLock lock_;
  std::filesystem::path temporary_;
  std::vector<std::byte> buffer_;
};

} // namespace weft::checkpoint
