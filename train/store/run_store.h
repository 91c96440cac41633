#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/save/save.h"
#include "checkpoint/store/store.h"
#include "config/recipe.h"
#include "mesh/world.h"
#include "train/store/run_saver.h"
#include "train/store/train_state.h"

namespace weft::recipes {

/// The checkpoints of a run, outputs/<name>/checkpoints: what it resumes from,
/// and where it saves.
class RunStore {
 public:
  /// What resume() found.
  struct Resumed {
    TrainState state;
    RunLayout layout;
    std::filesystem::path folder;
    /// What was loaded besides `dicts`.
    checkpoint::StateDicts more;
  };
  /// Tensors to load besides, whose sizes only the checkpoint knows.
  using More = std::function<
      checkpoint::StateDicts(const checkpoint::Manifest&, const RunLayout&)>;
  /// A line for the user; called on rank 0 only.
  using LogLine = std::function<void(const std::string&)>;

  /// Takes the folder for this run until it ends: rank 0 locks it, clears what
  /// killed saves left, sets flight records of an earlier failure aside, as
  /// flight-1, flight-2, ..., and tries to write. With `fresh`, or
  /// `checkpoint.resume: never`, the checkpoints that are there are set aside,
  /// as checkpoints.old. Collective: all ranks; blocks. Throws:
  /// mesh::UsageError, on all ranks, if another run has the folder or it cannot
  /// be written; as read_hmac_key().
  RunStore(
      const Recipe& recipe,
      const mesh::World& world,
      bool fresh,
      LogLine log_line);
  ~RunStore();

  /// Loads the newest sound checkpoint into `dicts`; one that is damaged is
  /// named, set aside and skipped for the one before. None if there is none.
  /// Collective: all ranks; blocks.
  /// Throws: checkpoint::CheckpointError, on all ranks, if there are some and
  /// none is sound.
  std::optional<Resumed> resume(
      const checkpoint::StateDicts& dicts,
      const More& more = {});

  /// Saves the steps of the run.
  RunSaver& saver() { return *saver_; }
  /// What a step folder holds beside its tensors.
  checkpoint::StepContent content(
      const TrainState& state,
      const RunLayout& layout) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Lock;

  void open(bool fresh);
  void finish_archiving();
  Resumed load_step(
      const std::filesystem::path& folder,
      const checkpoint::Manifest& manifest,
      const checkpoint::StateDicts& dicts,
      const More& more) const;
  bool is_first() const { return world_.rank() == 0; }
  void log_line(const std::string& text) const;

  const Recipe& recipe_;
  mesh::World world_;
  std::filesystem::path path_;
  LogLine log_line_;
  std::string hmac_key_;
  /// Rank 0's, until the run ends.
  std::unique_ptr<Lock> lock_;
  /// Ends before the lock does.
  std::unique_ptr<RunSaver> saver_;
};

/// outputs/<name>/checkpoints.
std::filesystem::path checkpoints_path(const Recipe& recipe);
/// outputs/<name>/metrics.jsonl.
std::string metrics_path(const Recipe& recipe);

using InspectFn = std::function<
    void(const checkpoint::StepFolder&, const checkpoint::Manifest&)>;
/// Shows `look` a run's newest checkpoint whose manifest can be read, or an
/// older one if `look` throws checkpoint::CheckpointError. No communication.
void inspect_newest(const Recipe& recipe, const InspectFn& look);

/// Refuses to go on with a run of another model or other data. Looks at the
/// newest checkpoint whose manifest can be read; no communication.
/// Throws: mesh::UsageError naming the keys that differ, with both values.
void check_run_fits(const Recipe& recipe, const std::string& data_fingerprint);

} // namespace weft::recipes
