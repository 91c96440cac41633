#include "models/registry.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "mesh/error/error.h"
#include "models/plans.h"

namespace weft::models {
namespace {

RopeScaling::Type rope_type(config::RopeType type) {
  switch (type) {
    case config::RopeType::kLlama3:
      return RopeScaling::Type::kLlama3;
    case config::RopeType::kLinear:
      return RopeScaling::Type::kLinear;
    case config::RopeType::kNone:
      break;
  }
  return RopeScaling::Type::kNone;
}

RopeScaling rope_scaling(const config::RopeScalingConfig& config) {
  return {
      .type = rope_type(config.rope_type),
      .factor = config.factor,
      .low_freq_factor = config.low_freq_factor,
      .high_freq_factor = config.high_freq_factor,
      .original_max_position_embeddings =
          config.original_max_position_embeddings};
}

LlamaConfig llama_config(const config::Recipe& recipe) {
  const auto& model = recipe.model;
  return {
      .dim = model.dim,
      .layers = model.layers,
      .heads = model.heads,
      .kv_heads = model.kv_heads,
      .ffn_dim = model.ffn_dim,
      .vocab_size = model.vocab_size,
      .max_sequence_length = recipe.data.sequence_length,
      .rope_theta = model.rope_theta,
      .rope_scaling = rope_scaling(model.rope_scaling),
      .norm_eps = model.norm_eps,
      .tie_embeddings = model.tie_embeddings,
      .attention_dropout = model.attention_dropout};
}

MoeConfig moe_config(const config::Recipe& recipe) {
  const auto& model = recipe.model;
  MoeConfig config{llama_config(recipe)};
  config.num_experts = model.num_experts;
  config.num_experts_per_tok = model.num_experts_per_tok;
  config.router_aux_loss_coef = model.router_aux_loss_coef;
  config.router_z_loss_coef = model.router_z_loss_coef;
  return config;
}

Gpt2Config gpt2_config(const config::Recipe& recipe) {
  const auto& model = recipe.model;
  return {
      .dim = model.dim,
      .layers = model.layers,
      .heads = model.heads,
      .ffn_dim = model.ffn_dim,
      .vocab_size = model.vocab_size,
      .max_position_embeddings = model.max_position_embeddings,
      .norm_eps = model.norm_eps,
      .dropout = model.dropout,
      .attention_dropout = model.attention_dropout};
}

VitConfig vit_config(const config::Recipe& recipe) {
  const auto& model = recipe.model;
  return {
      .image_size = model.image_size,
      .patch_size = model.patch_size,
      .channels = model.channels,
      .dim = model.dim,
      .layers = model.layers,
      .heads = model.heads,
      .ffn_dim = model.ffn_dim,
      .num_classes = model.num_classes,
      .norm_eps = model.norm_eps,
      .dropout = model.dropout,
      .attention_dropout = model.attention_dropout};
}

MlpConfig mlp_config(const config::Recipe& recipe) {
  const auto& model = recipe.model;
  return {
      .image_size = model.image_size,
      .channels = model.channels,
      .layers = model.layers,
      .ffn_dim = model.ffn_dim,
      .num_classes = model.num_classes,
      .dropout = model.dropout};
}

template <auto Config, class Impl, auto Plan>
ModelType type(
    std::string name,
    std::string title,
    ModelInput input = ModelInput::kTokens) {
  return {
      .name = std::move(name),
      .title = std::move(title),
      .input = input,
      .outputs =
          [input](const config::Recipe& recipe) {
            return input == ModelInput::kTokens ? recipe.model.vocab_size
                                                : recipe.model.num_classes;
          },
      .make = [](const config::Recipe& recipe) -> std::shared_ptr<Model> {
        return std::make_shared<Impl>(Config(recipe));
      },
      .plan =
          [](const config::Recipe& recipe, const PlanOptions& options) {
            return Plan(options, Config(recipe));
          }};
}

const config::ModelTypes& builtin_types() {
  static const config::ModelTypes types{
      type<llama_config, LlamaForCausalLMImpl, llama_plan>("llama", "Llama"),
      type<gpt2_config, Gpt2LMHeadModelImpl, gpt2_plan>("gpt2", "GPT-2"),
      type<moe_config, MoeForCausalLMImpl, moe_plan>(
          "moe", "mixture of experts"),
      type<vit_config, VitForImageClassificationImpl, vit_plan>(
          "vit", "vision transformer", ModelInput::kImages),
      type<mlp_config, MlpClassifierImpl, mlp_plan>(
          "mlp", "MLP", ModelInput::kImages)};
  return types;
}

const ModelType* find_type(
    const config::ModelTypes& types,
    std::string_view name) {
  const auto found = std::ranges::find(types, name, &ModelType::name);
  return found == types.end() ? nullptr : &*found;
}

const ModelType& type_of(const config::Recipe& recipe) {
  const auto& linked = recipe.origins.models.types;
  const auto& name = recipe.model.type;
  const auto* type = find_type(builtin_types(), name);
  if (type == nullptr && linked != nullptr) {
    type = find_type(*linked, name);
  }
  if (type == nullptr) {
    config::refuse(recipe, "model.type", "there is no model \"" + name + "\"");
  }
  return *type;
}

bool is_type_name(std::string_view name) {
  const auto is_fine = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  };
  return !name.empty() && std::isalpha(name.front()) != 0 &&
         std::ranges::all_of(name, is_fine);
}

[[noreturn]] void refuse_type(const ModelType& type, const std::string& why) {
  mesh::throw_error<mesh::UsageError>(
      "the model type \"" + type.name + "\" that is linked in " + why);
}

} // namespace

void check_model_types(const config::ModelTypes& models) {
  for (const auto& type : models) {
    if (find_type(builtin_types(), type.name) != nullptr) {
      refuse_type(
          type, "has the same name as a built-in model type. Rename it");
    }
    if (std::ranges::count(models, type.name, &ModelType::name) > 1) {
      refuse_type(type, "is registered twice");
    }
    if (!is_type_name(type.name)) {
      refuse_type(type, "has an invalid name; use only letters, digits and _");
    }
    if (type.title.empty() || !type.resolve || !type.outputs || !type.make ||
        !type.plan) {
      refuse_type(
          type, "must set all of title, config, outputs, make and plan");
    }
  }
}

config::KnownModels known_models(config::ModelTypes types) {
  config::KnownModels known;
  for (const auto& type : types) {
    known.names.push_back(type.name);
  }
  known.types = std::make_shared<const config::ModelTypes>(std::move(types));
  return known;
}

void resolve_options(config::Recipe& recipe) {
  if (const auto& resolve = type_of(recipe).resolve) {
    resolve(recipe);
  }
}

void detail::resolve_with(
    config::Recipe& recipe,
    const std::function<void(config::ModelOptions&)>& read) {
  config::ModelOptions options(recipe);
  try {
    read(options);
  } catch (const mesh::UsageError&) {
    throw;
  } catch (const c10::ValueError& error) {
    // A check of the model's own failed.
    config::refuse(recipe, "model.options", error.what_without_backtrace());
  }
  recipe.model.options = options.finish();
}

ModelInput model_input(const config::Recipe& recipe) {
  return type_of(recipe).input;
}

int64_t model_outputs(const config::Recipe& recipe) {
  return type_of(recipe).outputs(recipe);
}

std::shared_ptr<Model> make_model(const config::Recipe& recipe) {
  return type_of(recipe).make(recipe);
}

tp::ParallelizePlan model_plan(const config::Recipe& recipe) {
  return type_of(recipe).plan(
      recipe,
      {.sequence_parallel = recipe.tp.sequence_parallel,
       .loss_parallel = recipe.tp.loss_parallel,
       .size = recipe.mesh.tp});
}

std::string_view model_title(const config::Recipe& recipe) {
  return type_of(recipe).title;
}

} // namespace weft::models
