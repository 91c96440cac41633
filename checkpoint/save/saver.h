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

struct SaverOptions {
  /// None: one rank saves alone, and its tensors are plain or on a mesh of one.
  std::optional<mesh::World> world = std::nullopt;
  /// Whether all is on disk, not only with the kernel, before a step counts as
  /// saved.
  bool sync = true;
  /// After a commit all steps but the newest `keep` go. 0: none does.
  int64_t keep = 0;
  /// The most that one rank's asynchronous saves write in a second. 0: any.
  int64_t bytes_per_second = 0;
  /// 0: kDefaultPieceBytes, or more where the manifest would grow too long.
  int64_t piece_bytes = 0;
  /// SHA-256 of every piece, beside XXH3.
  bool sha256 = false;
  /// Key of the manifest's HMAC-SHA256; turns `sha256` on. Empty: none.
  std::string hmac_key = {};
};

/// What a step folder holds beside its tensors; see SaveOptions.
struct StepContent {
  int64_t step = 0;
  std::string state = "{}";
  std::string layout = "{}";
};

/// What the last save took on this rank.
struct SaveStats {
  /// This rank writes so many bytes of tensors.
  int64_t bytes = 0;
  /// Of memory, kept between asynchronous saves.
  int64_t staging_bytes = 0;
  /// What the caller waited for.
  std::chrono::duration<double> blocked{};
  /// From the call to the commit.
  std::chrono::duration<double> total{};
  /// Whether the plan of the save before was used again.
  bool plan_was_cached = false;
  /// On the first rank: what could not be done after the commit, such as to
  /// delete old steps; mostly empty.
  std::string note;
};

/// Saves the steps of one run: plans once, as long as the state's tensors stay
/// the same, and writes in the background if asked to.
///
/// save() and save_async() are collective: all ranks of the world, in the same
/// order; the others are this rank's own. Not thread-safe.
class Saver {
 public:
  /// Collective; blocks. Writes nothing yet.
  Saver(std::filesystem::path checkpoints, SaverOptions options);
  /// Waits for the save in flight; its error is lost, so call wait() before.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Waits for the save in flight, then saves. Returns the step's folder.
  /// Throws: as checkpoint::save(); SaveError also, once this step is saved, if
  /// the save that was in flight has failed.
  std::filesystem::path save(
      const StateDicts& dicts,
      const StepContent& content);

  /// Waits for the save in flight; copies what this rank will write, into
  /// memory that is kept for the next time; returns. The tensors may change
  /// then. The rest happens on a thread of its own: the step is committed, and
  /// older ones go, once all ranks have written.
  /// Throws: c10::ValueError as save(). What goes wrong afterwards throws from
  /// the next check(), wait(), save() or save_async(), from the latter two when
  /// theirs is under way.
  void save_async(const StateDicts& dicts, const StepContent& content);

  /// Makes ready what the first save_async() of these tensors would otherwise
  /// wait for: the plan, groups of ranks, and, in the background, the memory.
  /// Collective; blocks.
  void prepare_async(const StateDicts& dicts);

  /// From now on the save in flight is no longer held to `bytes_per_second` on
  /// this rank: somebody waits for it.
  void unthrottle();
  /// Whether a save is in flight on this rank.
  bool is_in_flight() const;
  /// Returns at once. Throws: SaveError (mesh::DisagreementError,
  /// mesh::CommError), once, if an asynchronous save has failed: on every rank,
  /// though not at the same call.
  void check();
  /// Blocks until nothing is in flight.
  /// Throws: as check().
  void wait();

  /// Of the last save that went well.
  SaveStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::checkpoint
