#include "train/run_context.h"

#include <utility>

#include "checkpoint/store/store.h"
#include "hf/export_model.h"
#include "mesh/error/error.h"
#include "train/setup/initial_weights.h"
#include "train/setup/products.h"
#include "train/store/earlier_choices.h"

namespace weft::train {
namespace {

// Hosts may differ in the libraries that they support, so that the ranks
// compare what they have adopted.
void adopt_earlier_choices(
    config::Recipe& recipe,
    const config::Recipe& requested,
    const RunLayout& earlier,
    const mesh::World& world) {
  recipe = with_earlier_choices(requested, earlier);
  resolve_products(recipe);
  world.check_agreement(
      {{"recipe, products, of the run in " + recipe.output_dir,
        std::string(to_string(recipe.products))}});
}

} // namespace

void check_export(const config::Recipe& recipe) {
  constexpr const char* kExportKey = "checkpoint.export_to";
  const auto& folder = recipe.checkpoint.export_to;
  if (folder.empty()) {
    return;
  }
  try {
    hf::check_is_free(folder);
  } catch (const mesh::UsageError& error) {
    config::refuse(recipe, kExportKey, error.what_without_backtrace());
  }
}

RunContext open_run(
    const config::Recipe& recipe,
    const mesh::World& world,
    RunContextOptions options) {
  auto inputs = open_inputs(recipe, world, std::move(options.data));
  // A run that is refused here neither creates a folder nor renames the
  // checkpoints of an earlier run.
  const bool is_new = options.starts_over ||
                      checkpoint::list_steps(checkpoints_path(recipe)).empty();
  if (is_new) {
    check_initial_weights(recipe);
    check_export(recipe);
  }
  auto store = std::make_unique<RunStore>(
      recipe,
      world,
      options.starts_over,
      std::move(options.log),
      options.owns_folder);
  if (const auto& earlier = store->earlier()) {
    store->check_run_fits(recipe, inputs.data.data().fingerprint_text());
    adopt_earlier_choices(inputs.recipe, recipe, earlier->layout, world);
  }
  // A run that has done all its steps may have exported its model there.
  if (!is_new && store->newest_step().value_or(0) < recipe.train.steps) {
    check_export(recipe);
  }
  return {.store = std::move(store), .inputs = std::move(inputs)};
}

} // namespace weft::train
