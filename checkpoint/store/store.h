#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files/folder.h"
#include "checkpoint/format/manifest.h"

/// Functions for the folder `checkpoints/` of a run. Only the process that
/// holds the StoreLock changes it; any number of processes may read it.
/// Throws: std::system_error with path and errno, unless a function documents
/// other errors.
namespace weft::checkpoint {

/// A committed step.
struct StepFolder {
  /// The step.
  int64_t step = 0;
  /// The folder of the step.
  std::filesystem::path path;
};

/// Returns the committed steps, newest first. Ignores temporary folders, other
/// names and symbolic links. Empty if `checkpoints` does not exist.
std::vector<StepFolder> list_steps(const std::filesystem::path& checkpoints);

/// Returns the path `checkpoints/step-<step>`.
std::filesystem::path step_path(
    const std::filesystem::path& checkpoints,
    int64_t step);

/// Returns the step that the file `latest` names. Empty if the file or the step
/// does not exist.
std::optional<int64_t> read_latest(const std::filesystem::path& checkpoints);

/// Creates a temporary folder for `step`, and `checkpoints` if it is missing.
/// Returns the path, which ranks may share to write their files into the
/// folder.
std::filesystem::path begin_step(
    const std::filesystem::path& checkpoints,
    int64_t step);

/// Like begin_step(), with a folder name that several ranks know. The first
/// caller creates the folder.
std::filesystem::path join_step(
    const std::filesystem::path& checkpoints,
    int64_t step,
    const std::string& nonce);

/// Returns the path that join_step() returns, without creating the folder.
std::filesystem::path temporary_path(
    const std::filesystem::path& checkpoints,
    int64_t step,
    const std::string& nonce);

/// Returns 16 random hexadecimal digits, for names.
std::string random_hex();

/// Writes manifest.json into a folder that has all its files. With `sync`,
/// blocks until it is on the disk.
/// Throws: mesh::UsageError like to_json().
void write_manifest(
    const Folder& folder,
    const Manifest& manifest,
    bool sync,
    std::string_view hmac_key = {});

/// The step that `latest` names after a commit.
enum class MoveLatest {
  /// The committed step, from which the run resumes.
  kAlways,
  /// The committed step, unless `latest` names a higher one. For a step that
  /// another program adds to the steps of a run.
  kForward,
};

/// Makes `temporary` the checkpoint of `step`, then moves `latest`. After the
/// return the next load finds the step, with `sync` even after a power loss.
/// Readers see no change before the rename, and an error undoes it. Returns why
/// `latest` could not be moved, which does not affect the step. Empty if it was
/// moved.
/// Throws: mesh::UsageError if `step-<step>` exists: nothing is overwritten.
std::string commit_step(
    const std::filesystem::path& checkpoints,
    const std::filesystem::path& temporary,
    int64_t step,
    bool sync,
    MoveLatest move = MoveLatest::kAlways);

/// Deletes one temporary folder, e.g. after a failed save.
void discard_step(const std::filesystem::path& temporary) noexcept;

/// Deletes what interrupted saves and deletions left behind. The caller must
/// hold the StoreLock, and no save may be in progress. Returns the number of
/// removed entries.
int64_t remove_temporaries(const std::filesystem::path& checkpoints);

/// Deletes all steps except the newest `keep` (at least 1) and the one that
/// `latest` names. A step that a reader has pinned stays until the next call.
/// Returns the deleted steps.
std::vector<int64_t> prune_steps(
    const std::filesystem::path& checkpoints,
    int64_t keep);

/// Deletes one step. An interrupted deletion leaves a temporary folder, never a
/// partial checkpoint. Returns false if a reader has pinned the step.
bool remove_step(const std::filesystem::path& checkpoints, int64_t step);

/// Renames a step to "damaged-step-<step>-<random>", so that its number is free
/// again. No other function reads such a folder. Returns the new path.
std::filesystem::path quarantine_step(
    const std::filesystem::path& checkpoints,
    int64_t step);

/// Reads the manifest of a step folder. With an `hmac_key`, checks its HMAC;
/// see parse_manifest().
/// Throws: CheckpointError if the manifest is missing, unreadable or damaged;
/// mesh::UsageError if the folder does not exist.
Manifest read_manifest(
    const std::filesystem::path& step_folder,
    std::string_view hmac_key = {});
Manifest read_manifest(
    const Folder& step_folder,
    std::string_view hmac_key = {});

/// Returns the text of the manifest of a step folder.
/// Throws: like read_manifest().
std::string read_manifest_text(const Folder& step_folder);
/// Parses and checks that text, also on a rank that received it from another
/// one. Throws: like read_manifest().
Manifest parse_step_manifest(
    const std::string& text,
    const std::filesystem::path& step_folder,
    std::string_view hmac_key = {});

/// Exclusive write lock on a `checkpoints/` folder, released on destruction or
/// process exit. Creates the folder if it is missing.
class StoreLock {
 public:
  /// Acquires the lock without blocking.
  /// Throws: mesh::UsageError if another process holds the lock, naming that
  /// process, or if the folder cannot be written.
  explicit StoreLock(const std::filesystem::path& checkpoints);

  /// Returns true if `checkpoints` has a lock file, locked or not.
  static bool has_file(const std::filesystem::path& checkpoints);
  /// Removes the lock file. The lock must be held. A process that has opened
  /// the file meanwhile detects the removal and creates a new one.
  void remove_file() const noexcept;

 private:
  File file_;
};

/// Prevents the deletion of a step folder while it is read.
class StepPin {
 public:
  /// Throws: mesh::UsageError if the folder does not exist; CheckpointError if
  /// it is being deleted.
  explicit StepPin(const std::filesystem::path& step_folder);
  /// The open step folder.
  const Folder& folder() const { return folder_; }

 private:
  Folder folder_;
};

} // namespace weft::checkpoint
