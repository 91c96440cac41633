#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files/folder.h"
#include "checkpoint/format/manifest.h"

/// The folder `checkpoints/` of a run. One process changes it at a time, which
/// holds a StoreLock; any number read.
/// Throws: std::system_error with path and errno, unless a function says more.
namespace weft::checkpoint {

struct StepFolder {
  int64_t step = 0;
  std::filesystem::path path;
};

/// Committed steps, newest first. Ignores temporary folders, names of others
/// and symbolic links. None if `checkpoints` does not exist.
std::vector<StepFolder> list_steps(const std::filesystem::path& checkpoints);

/// `checkpoints`/step-<step>.
std::filesystem::path step_path(
    const std::filesystem::path& checkpoints,
    int64_t step);

/// What the file `latest` names, if it is there and names a step that is.
std::optional<int64_t> read_latest(const std::filesystem::path& checkpoints);

/// Makes a temporary folder for `step`, and `checkpoints` too where it is
/// missing. Ranks that are told its path write their files into it.
std::filesystem::path begin_step(
    const std::filesystem::path& checkpoints,
    int64_t step);

/// The same with a name that several ranks know: whoever comes first makes it.
std::filesystem::path join_step(
    const std::filesystem::path& checkpoints,
    int64_t step,
    const std::string& nonce);

/// What join_step() returns, whether it is there or not.
std::filesystem::path temporary_path(
    const std::filesystem::path& checkpoints,
    int64_t step,
    const std::string& nonce);

/// 16 random hexadecimal digits, for names.
std::string random_hex();

/// Writes manifest.json into a folder that has all its files; with `sync`, it
/// is on the disk when it returns.
/// Throws: mesh::UsageError as to_json().
void write_manifest(
    const Folder& folder,
    const Manifest& manifest,
    bool sync,
    std::string_view hmac_key = {});

/// Which step `latest` names after a commit.
enum class MoveLatest {
  /// The one committed: a run goes on from what it saved last.
  kAlways,
  /// The one committed, unless `latest` names a higher one: for a step that is
  /// added to those of a run from outside.
  kForward,
};

/// Makes `temporary` the checkpoint of `step`: when it returns, the next load
/// finds it, after a power loss too if `sync`. Then moves `latest`. Until the
/// rename nothing has changed for a reader, and an error takes that back.
/// Returns why `latest` could not be moved, mostly nothing: the step stands.
/// Throws: mesh::UsageError if step-<step> exists: nothing is overwritten.
std::string commit_step(
    const std::filesystem::path& checkpoints,
    const std::filesystem::path& temporary,
    int64_t step,
    bool sync,
    MoveLatest move = MoveLatest::kAlways);

/// Deletes one temporary folder, as after a failed save.
void discard_step(const std::filesystem::path& temporary) noexcept;

/// Deletes what killed saves and deletions left. Only while the StoreLock is
/// held, and no save is under way. Returns how many entries it removed.
int64_t remove_temporaries(const std::filesystem::path& checkpoints);

/// Deletes all steps but the newest `keep` (at least 1) and the one that
/// `latest` names. One that a reader has pinned stays until the next time.
/// Returns the steps that are gone.
std::vector<int64_t> prune_steps(
    const std::filesystem::path& checkpoints,
    int64_t keep);

/// Deletes one step. A deletion that is cut short leaves a temporary folder,
/// never half a checkpoint. Returns false if a reader has pinned it.
bool remove_step(const std::filesystem::path& checkpoints, int64_t step);

/// Moves a step out of the way, to "damaged-step-<step>-<random>", so that its
/// number is free again. Nothing else looks at such a folder.
/// Returns the new path.
std::filesystem::path quarantine_step(
    const std::filesystem::path& checkpoints,
    int64_t step);

/// `hmac_key`: see parse_manifest().
/// Throws: CheckpointError if the manifest is missing, unreadable or damaged;
/// mesh::UsageError if there is no such folder.
Manifest read_manifest(
    const std::filesystem::path& step_folder,
    std::string_view hmac_key = {});
Manifest read_manifest(
    const Folder& step_folder,
    std::string_view hmac_key = {});

/// The right to change a folder `checkpoints/`; given back when the object or
/// the process ends. Makes the folder where it is missing.
class StoreLock {
 public:
  /// Throws: mesh::UsageError naming the folder and the process that holds it,
  /// or why the folder cannot be written.
  explicit StoreLock(const std::filesystem::path& checkpoints);

  static bool has_file(const std::filesystem::path& checkpoints);
  /// Removes the lock file, while the lock is held. Whoever has opened it
  /// meanwhile finds that it is gone, and makes another.
  void remove_file() const noexcept;

 private:
  File file_;
};

/// Keeps a step folder from being deleted while it is read.
class StepPin {
 public:
  /// Throws: mesh::UsageError if there is no such folder; CheckpointError if it
  /// is being deleted.
  explicit StepPin(const std::filesystem::path& step_folder);
  const Folder& folder() const { return folder_; }

 private:
  Folder folder_;
};

} // namespace weft::checkpoint
