#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/log.h"
#include "checkpoint/save/saver.h"
#include "config/recipe.h"
#include "mesh/world.h"

namespace weft::train {

/// Returns the save options of a recipe.
checkpoint::SaverOptions saver_options(
    const config::Recipe& recipe,
    const mesh::World& world,
    std::string hmac_key);

/// Saves the steps of one run, in the background if the recipe asks for it, and
/// reports the result of each save to the user. After a failed save, the
/// earlier checkpoints remain and training continues.
/// save(), save_now() and finish() are collective: all ranks make the same
/// calls. poll() is local to this rank.
/// Throws: mesh::CommError if a peer is lost.
class RunSaver {
 public:
  /// Collective: all ranks; blocks.
  RunSaver(
      std::filesystem::path checkpoints,
      checkpoint::SaverOptions options,
      bool is_async,
      base::Logger log);

  /// Prepares background saves, so that the first one does not have to wait.
  /// Collective: all ranks; blocks.
  void prepare(const checkpoint::StateDicts& dicts);

  /// Starts a save. Without `is_async` it also completes it. Returns true if
  /// the step is saved when the call returns.
  bool save(
      const checkpoint::StateDicts& dicts,
      const checkpoint::StepContent& content);
  /// Waits for the save in flight, without its bandwidth limit, then saves.
  /// Tries once more if the save fails. Returns true if the step is saved.
  bool save_now(
      const checkpoint::StateDicts& dicts,
      const checkpoint::StepContent& content);
  /// Waits, without a bandwidth limit, for the save that save() left in flight.
  /// Returns true if that step is now saved, false also if nothing was in
  /// flight.
  bool finish();
  /// Reports the result of the save in flight if it has completed.
  void poll();

 private:
  bool try_save(
      const checkpoint::StateDicts& dicts,
      const checkpoint::StepContent& content);
  bool end_flight();

  checkpoint::Saver saver_;
  bool is_async_;
  base::Logger log_;
  /// The step whose save is in flight.
  std::optional<int64_t> in_flight_;
};

} // namespace weft::train
