#include "train/store/earlier_choices.h"

#include "train/setup/products.h"
#include "train/store/link_costs.h"
#include "train/store/run_store.h"
#include "train/store/train_state.h"

namespace weft::train {

config::Recipe with_earlier_choices(config::Recipe recipe, bool fresh) {
  if (fresh || recipe.checkpoint.resume == "never") {
    return recipe;
  }
  inspect_newest(recipe, [&](const auto& step, const auto& manifest) {
    const auto layout = parse_run_layout(manifest.layout, step.path.string());
    if (recipe.products == "auto") {
      recipe.products = possible_products(layout.products);
    }
    if (layout.mesh == recipe.mesh.to_string()) {
      adopt_link_costs(recipe, layout.links);
    }
  });
  return recipe;
}

} // namespace weft::train
