#include "train/store/earlier_choices.h"

#include "train/setup/products.h"
#include "train/store/link_costs.h"
#include "train/store/train_state.h"

namespace weft::train {

config::Recipe with_earlier_choices(
    config::Recipe recipe,
    const RunLayout& earlier) {
  if (recipe.products == config::Products::kAuto) {
    recipe.products = possible_products(earlier.products);
  }
  if (earlier.mesh == recipe.mesh.to_string()) {
    adopt_link_costs(recipe, earlier.links);
  }
  return recipe;
}

} // namespace weft::train
