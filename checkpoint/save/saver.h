#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/save/save.h"
#include "mesh/world.h"

namespace weft::checkpoint {

/// The options of a Saver.
struct SaverOptions {
  /// The world that saves. If it is not set, this rank saves alone, and its
  /// tensors are plain or on a mesh of one rank.
  std::optional<mesh::World> world = std::nullopt;
  /// True if a step counts as saved only after all data is on the disk. If
  /// false, the data may still be in the kernel.
  bool fsync = true;
  /// The number of newest steps to keep; older steps are deleted after each
  /// commit. 0 keeps all.
  int64_t keep = 0;
  /// Limits background writes to this many bytes/s per rank. 0 means no limit.
  int64_t bytes_per_second = 0;
  /// The bytes per hashed piece. 0 means kDefaultPieceBytes, or more if the
  /// manifest would become too long.
  int64_t piece_bytes = 0;
  /// Stores a SHA-256 of every piece in addition to XXH3.
  bool sha256 = false;
  /// The key of the manifest's HMAC-SHA256. A key enables `sha256`. Empty
  /// disables the HMAC.
  std::string hmac_key = {};
};

/// The contents of a step folder besides its tensors; see SaveOptions.
struct StepContent {
  /// See SaveOptions::step.
  int64_t step = 0;
  /// See SaveOptions::state.
  std::string state = "{}";
  /// See SaveOptions::layout.
  std::string layout = "{}";
};

/// The statistics of the last save on this rank.
struct SaveStats {
  /// The bytes of tensors that this rank writes.
  int64_t bytes = 0;
  /// The bytes of the staging memory, which is kept between asynchronous saves.
  int64_t staging_bytes = 0;
  /// The time for which the caller was blocked.
  std::chrono::duration<double> blocked{};
  /// The time from the call to the commit.
  std::chrono::duration<double> total{};
  /// True if the plan of the previous save was reused.
  bool plan_was_cached = false;
  /// A warning on rank 0: a slow rank, or an action that failed after the
  /// commit, such as deleting old steps. Empty if there is none.
  std::string note;
};

/// Saves the steps of one run. Computes a new plan only if the state's tensors
/// change, and can write in the background.
/// The constructor, save(), save_async() and prepare_async() are collective:
/// all ranks of the world call them in the same order. The other methods are
/// local to this rank. Not thread-safe.
class Saver {
 public:
  /// Writes nothing yet.
  /// Collective: all ranks of the world; blocks.
  Saver(std::filesystem::path checkpoints, SaverOptions options);
  /// Waits for the save in flight. Its error is lost, so call wait() before.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Waits for the save in flight, then saves. Returns the step's folder.
  /// Throws: like checkpoint::save(); also, after this step is saved, the
  /// SaveError of the save that was in flight.
  std::filesystem::path save(
      const StateDicts& dicts,
      const StepContent& content);

  /// Waits for the save in flight, copies the data that this rank will write to
  /// staging memory, which is reused by later saves, and returns. The tensors
  /// may then change. A background thread writes; the step is committed, and
  /// older steps are deleted, after all ranks have written.
  /// Throws: c10::ValueError like save(). A later error is thrown by the next
  /// check(), wait(), save() or save_async(), by the latter two after their own
  /// save has started.
  void save_async(const StateDicts& dicts, const StepContent& content);

  /// Prepares what the first save_async() of these tensors would otherwise wait
  /// for: the plan, the groups of ranks and, in the background, the memory.
  /// Collective: all ranks of the world; blocks.
  void prepare_async(const StateDicts& dicts);

  /// Lifts the `bytes_per_second` limit of the save in flight on this rank, for
  /// a caller that waits for it.
  void unthrottle();
  /// Returns true if a save is in flight on this rank.
  bool is_in_flight() const;
  /// Returns without blocking.
  /// Throws: SaveError, mesh::DisagreementError or mesh::CommError, once, if an
  /// asynchronous save has failed. Every rank throws, though not necessarily at
  /// the same call.
  void check();
  /// Blocks until no save is in flight.
  /// Throws: like check().
  void wait();

  /// Returns the statistics of the last successful save.
  SaveStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::checkpoint
