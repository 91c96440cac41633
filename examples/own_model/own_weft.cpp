// `weft` with a user-defined model, which recipes call own_transformer:
//   weftrun --nproc-per-node 4 -- own_weft train own_weft.yaml mesh.tp=2
// docs/your_own_model.md explains it.

#include <memory>

#include <weft/cli/main.h>

#include "model.h"
#include "plan.h"

namespace own {
namespace {

namespace config = weft::config;
namespace models = weft::models;

Config read_options(config::ModelOptions& options) {
  const Config config{
      .width = options.get<int64_t>("width", {.fallback = 64, .least = 1}),
      .heads = options.get<int64_t>("heads", {.fallback = 4, .least = 1}),
      .blocks = options.get<int64_t>("blocks", {.least = 1}),
      .context = options.recipe().data.sequence_length};
  if (config.width % config.heads != 0) {
    options.refuse("heads", "does not divide model.options.width");
  }
  return config;
}

models::ModelType transformer() {
  return models::model_type<Config>(
      {.name = "own_transformer",
       .title = "transformer of our own",
       .config = read_options,
       .outputs = [](const Config& /*config*/) { return kBytes; },
       .make =
           [](const Config& config) {
             return std::make_shared<TransformerImpl>(config);
           },
       .plan = [](const models::PlanOptions& options,
                  const Config& /*config*/) { return plan(options); }});
}

} // namespace
} // namespace own

int main(int argc, char** argv) {
  return weft::cli::main(argc, argv, {own::transformer()});
}
