#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "checkpoint/save/saver.h"
#include "config/recipe.h"
#include "mesh/world.h"

namespace weft::recipes {

/// What the recipe says about saving.
checkpoint::SaverOptions saver_options(
    const Recipe& recipe,
    const mesh::World& world,
    std::string hmac_key);

/// Saves the steps of one run, in the background if the recipe says so, and
/// tells the user what became of each. A failed save loses nothing, and
/// training goes on.
///
/// save(), save_now() and finish() are collective: all ranks, the same calls;
/// poll() is this rank's own. Throws: mesh::CommError if a peer is lost.
class RunSaver {
 public:
  /// A line for the user; called on rank 0 only.
  using LogLine = std::function<void(const std::string&)>;

  /// Collective; blocks.
  RunSaver(
      std::filesystem::path checkpoints,
      checkpoint::SaverOptions options,
      bool is_async,
      LogLine log_line);

  /// Makes ready what the first save in the background would wait for.
  /// Collective; blocks.
  void prepare(const checkpoint::StateDicts& dicts);

  /// Begins to save; without `is_async` it also ends. Returns whether the step
  /// is saved by now.
  bool save(
      const checkpoint::StateDicts& dicts,
      const checkpoint::StepContent& content);
  /// Waits for what is in flight, which may now write as fast as it can, then
  /// saves; if that fails, tries once more. Returns whether the step is saved.
  bool save_now(
      const checkpoint::StateDicts& dicts,
      const checkpoint::StepContent& content);
  /// Right after save(): waits, as above, for what it left in flight. Returns
  /// whether that step is saved now; false if nothing was in flight.
  bool finish();
  /// Says what has become of the save in flight, if that is known by now.
  void poll();

 private:
  bool try_save(
      const checkpoint::StateDicts& dicts,
      const checkpoint::StepContent& content);
  bool end_flight();

  checkpoint::Saver saver_;
  bool is_async_;
  LogLine log_line_;
  /// The step that is in flight.
  std::optional<int64_t> in_flight_;
};

} // namespace weft::recipes
