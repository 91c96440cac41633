#include "recipes/models/registry.h"

#include <array>

#include <c10/util/Exception.h>

#include "recipes/models/llama.h"
#include "recipes/models/llama_plan.h"

namespace weft::recipes {
namespace {

LlamaConfig llama_config(const Recipe& recipe) {
  const auto& model = recipe.model;
  LlamaConfig config;
  config.dim = model.dim;
  config.layers = model.layers;
  config.heads = model.heads;
  config.kv_heads = model.kv_heads;
  config.ffn_dim = model.ffn_dim;
  config.vocab_size = model.vocab_size;
  config.max_sequence_length = recipe.data.sequence_length;
  config.rope_theta = model.rope_theta;
  config.norm_eps = model.norm_eps;
  config.tie_embeddings = model.tie_embeddings;
  config.attention_dropout = model.attention_dropout;
  return config;
}

struct ModelType {
  std::string_view name;
  std::string_view title;
  std::shared_ptr<Model> (*make)(const Recipe& recipe);
  tp::ParallelizePlan (*plan)(const Recipe& recipe, const PlanOptions& options);
};

constexpr std::array kModelTypes{ModelType{
    "llama",
    "Llama",
    [](const Recipe& recipe) -> std::shared_ptr<Model> {
      return std::make_shared<LlamaForCausalLMImpl>(llama_config(recipe));
    },
    [](const Recipe& recipe, const PlanOptions& options) {
      return llama_plan(options, llama_config(recipe));
    }}};

const ModelType& type_of(const Recipe& recipe) {
  for (const auto& type : kModelTypes) {
    if (type.name == recipe.model.type) {
      return type;
    }
  }
  refuse(
      recipe, "model.type", "there is no model \"" + recipe.model.type + "\"");
}

} // namespace

std::shared_ptr<Model> make_model(const Recipe& recipe) {
  return type_of(recipe).make(recipe);
}

tp::ParallelizePlan model_plan(const Recipe& recipe) {
  return type_of(recipe).plan(
      recipe,
      {.sequence_parallel = recipe.tp.sequence_parallel,
       .loss_parallel = recipe.tp.loss_parallel,
       .size = recipe.mesh.tp});
}

std::string_view model_title(const Recipe& recipe) {
  return type_of(recipe).title;
}

} // namespace weft::recipes
