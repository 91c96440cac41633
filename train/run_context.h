#pragma once

#include <memory>
#include <optional>

#include "base/log.h"
#include "config/recipe.h"
#include "data/batch_loader.h"
#include "mesh/world.h"
#include "train/store/run_store.h"
#include "train/trainer.h"

namespace weft::train {

/// A run that has its folder and its data, but no model yet.
struct RunContext {
  std::unique_ptr<RunStore> store;
  TrainerInputs inputs;
};

/// The arguments of open_run() other than the recipe.
struct RunContextOptions {
  /// True if the run does not continue from the checkpoints of its folder:
  /// with --fresh or `checkpoint.resume: never`.
  bool starts_over = false;
  /// True if this process writes the folder from the start. False in the later
  /// replica groups of an elastic run.
  bool owns_folder = true;
  /// The data of the recipe, if the caller has opened it.
  std::optional<data::BatchLoader> data = std::nullopt;
  /// A callback that prints a line for the user. Called on rank 0 only.
  base::Logger log = {};
};

/// Opens the data and the folder of a run, each once, before a model is built:
/// compares recipe and data between ranks, checks the sources of the initial
/// weights and the target of the export if they will be used, locks the folder,
/// reads the newest manifest on rank 0 and sends it to the other ranks, checks
/// that the recipe continues that run, and adopts its choices.
/// `recipe` must be validated and must outlive the result.
/// Collective: all ranks of `world`; blocks.
/// Throws: the exceptions of open_inputs() and RunStore; mesh::UsageError, on
/// all ranks, if the folder has a run of another model or other data; the
/// exceptions of check_initial_weights(); mesh::UsageError at
/// checkpoint.export_to if that folder exists.
RunContext open_run(
    const config::Recipe& recipe,
    const mesh::World& world,
    RunContextOptions options);

/// Checks that the folder that the run exports its model to does not exist.
/// Throws: mesh::UsageError at checkpoint.export_to.
void check_export(const config::Recipe& recipe);

} // namespace weft::train
