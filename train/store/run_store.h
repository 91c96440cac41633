#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "checkpoint/load/newest.h"
#include "checkpoint/save/save.h"
#include "checkpoint/store/store.h"
#include "config/recipe.h"
#include "mesh/world.h"
#include "train/store/run_saver.h"
#include "train/store/train_state.h"

namespace weft::train {

/// The checkpoints of a run in outputs/<name>/checkpoints. Resumes from them
/// and saves new ones.
class RunStore {
 public:
  /// The result of resume().
  struct Resumed {
    TrainState state;
    RunLayout layout;
    std::filesystem::path folder;
    /// The tensors that were loaded in addition to `dicts`.
    checkpoint::StateDicts more;
  };
  /// A callback that returns additional tensors to load. Only the checkpoint
  /// has their sizes.
  using More = std::function<
      checkpoint::StateDicts(const checkpoint::Manifest&, const RunLayout&)>;
  /// The newest step that had a readable manifest when this object was made.
  struct Earlier {
    checkpoint::KnownStep step;
    TrainState state;
    RunLayout layout;
  };

  /// With `owns`, reserves the folder for this run until it ends: rank 0 locks
  /// it, deletes the remains of killed saves, renames flight records of an
  /// earlier failure to flight-1, flight-2, ..., and tests that it can write.
  /// If the run starts over, existing checkpoints are renamed to
  /// checkpoints.old. A replica group that does not own the folder only reads
  /// it. Then rank 0 reads the newest manifest and sends it to the other ranks,
  /// unless the run starts over. Collective: all ranks; blocks.
  /// Throws: mesh::UsageError on all ranks if another run has locked the folder
  /// or if it cannot be written; the exceptions of read_hmac_key().
  RunStore(
      const config::Recipe& recipe,
      const mesh::World& world,
      bool starts_over,
      base::Logger log,
      bool owns = true);
  ~RunStore();

  /// Empty if the folder has no readable manifest, if the run starts over, and
  /// after resume().
  const std::optional<Earlier>& earlier() const { return earlier_; }
  /// Returns the newest step that was in the folder when this object was made,
  /// damaged or not. Empty if there was none or the run starts over.
  std::optional<int64_t> newest_step() const { return newest_step_; }
  /// Checks that the run in the folder has the same model and data as `recipe`.
  /// Does not communicate.
  /// Throws: mesh::UsageError if they differ; it has the keys and both values.
  void check_run_fits(
      const config::Recipe& recipe,
      const std::string& data_fingerprint) const;

  /// Loads the newest valid checkpoint into `dicts`. Reports and renames each
  /// damaged one, if this group owns the folder, and tries the one before it.
  /// Empty if there are no checkpoints.
  /// Collective: all ranks; blocks.
  /// Throws: checkpoint::CheckpointError on all ranks if there are checkpoints
  /// and none is valid.
  std::optional<Resumed> resume(
      const checkpoint::StateDicts& dicts,
      const More& more = {});

  /// Takes the folder over from another replica group, which has gone: rank 0
  /// locks it and deletes the remains of killed saves. Returns "", or why that
  /// was not possible, for the user; it may be tried again.
  /// Collective: all ranks; blocks.
  std::string take_over();
  /// Gives the folder to another replica group.
  /// Collective: all ranks; blocks until the save in flight has ended.
  void give_up();
  bool owns() const { return owns_; }

  /// The object that saves the steps of the run.
  RunSaver& saver() { return *saver_; }
  /// Returns the content of a step folder other than its tensors.
  checkpoint::StepContent content(
      const TrainState& state,
      const RunLayout& layout) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Lock;

  void open(bool starts_over);
  void finish_archiving();
  void read_earlier();
  Resumed load_step(
      const std::filesystem::path& folder,
      const checkpoint::Manifest& manifest,
      const checkpoint::StateDicts& dicts,
      const More& more) const;
  bool is_first() const { return world_.rank() == 0; }

  const config::Recipe& recipe_;
  mesh::World world_;
  bool owns_;
  std::filesystem::path path_;
  base::Logger log_;
  std::string hmac_key_;
  std::optional<Earlier> earlier_;
  std::optional<int64_t> newest_step_;
  /// The folder's lock, held by rank 0 until the run ends.
  std::unique_ptr<Lock> lock_;
  /// Declared after lock_, so that it is destroyed first.
  std::unique_ptr<RunSaver> saver_;
};

/// Returns outputs/<name>/checkpoints.
std::filesystem::path checkpoints_path(const config::Recipe& recipe);
/// Returns outputs/<name>/metrics.jsonl.
std::string metrics_path(const config::Recipe& recipe);

} // namespace weft::train
