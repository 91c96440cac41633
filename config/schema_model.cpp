#include "config/schema_keys.h"

namespace weft::config::keys {
namespace {

Condition only_of(std::vector<std::string_view> types) {
  return {.key = "model.type", .values = std::move(types)};
}

Condition of_language_models() {
  return only_of({"llama", "gpt2", "moe"});
}

Condition of_rotary_models() {
  return only_of({"llama", "moe"});
}

Condition of_transformers() {
  return only_of({"llama", "gpt2", "moe", "vit"});
}

Condition of_image_models() {
  return only_of({"vit", "mlp"});
}

// Returns the condition that model.type is one of Weft's own. Other types have
// model.options.
Condition of_all() {
  return only_of({"llama", "gpt2", "moe", "vit", "mlp"});
}

std::vector<Key> size_keys() {
  return {
      {.path = "model.from",
       .field = member<&Recipe::model, &ModelConfig::from>,
       .doc = "A folder in Hugging Face format with config.json and "
              "safetensors. A new run starts from this model, and of the other "
              "model keys only dropout may be set (docs/hub.md). Empty means a "
              "model described by the other keys.",
       .only = of_language_models()},
      {.path = "model.type",
       .field = member<&Recipe::model, &ModelConfig::type>,
       .doc = "The architecture (docs/models.md). A program can register more "
              "types (docs/your_own_model.md).",
       .choices = {"llama", "gpt2", "moe", "vit", "mlp"}},
      {.path = "model.dim",
       .field = member<&Recipe::model, &ModelConfig::dim>,
       .doc =
           "The width of the residual stream. It must be a multiple of heads; "
           "with rotary embeddings (llama, moe) the quotient must be even.",
       .range = between(1, kMaxSize),
       .required = true,
       .only = of_transformers()},
      {.path = "model.layers",
       .field = member<&Recipe::model, &ModelConfig::layers>,
       .doc =
           "The number of transformer blocks, or of hidden layers of an mlp.",
       .range = between(1, 100'000),
       .required = true,
       .only = of_all()},
      {.path = "model.heads",
       .field = member<&Recipe::model, &ModelConfig::heads>,
       .doc =
           "The number of attention heads. It must be a multiple of mesh.tp.",
       .range = between(1, kMaxSize),
       .required = true,
       .only = of_transformers()},
      {.path = "model.kv_heads",
       .field = member<&Recipe::model, &ModelConfig::kv_heads>,
       .doc =
           "The number of key and value heads. It must divide heads, and must "
           "divide or be a multiple of mesh.tp. 0 means the value of heads.",
       .range = or_else(0, between(1, kMaxSize)),
       .only = of_rotary_models()},
      {.path = "model.ffn_dim",
       .field = member<&Recipe::model, &ModelConfig::ffn_dim>,
       .doc = "The width of the feed-forward layers, of each expert of a moe, "
              "or of the hidden layers of an mlp.",
       .range = between(1, kMaxSize),
       .required = true,
       .only = of_all()},
  };
}

std::vector<Key> language_keys() {
  return {
      {.path = "model.vocab_size",
       .field = member<&Recipe::model, &ModelConfig::vocab_size>,
       .doc = "The size of the vocabulary, at least that of the tokenizer "
              "(byte: 256).",
       .range = between(1, kMaxSize),
       .only = of_language_models()},
      {.path = "model.max_position_embeddings",
       .field = member<&Recipe::model, &ModelConfig::max_position_embeddings>,
       .doc = "The number of learned positions. 0 means data.sequence_length.",
       .unit = "tokens",
       .range = or_else(0, between(1, kMaxSize)),
       .only = only_of({"gpt2"})},
      {.path = "model.rope_theta",
       .field = member<&Recipe::model, &ModelConfig::rope_theta>,
       .doc = "The base of the wavelengths of the rotary embedding.",
       .range = above(0, 1e12),
       .only = of_rotary_models()},
      {.path = "model.norm_eps",
       .field = member<&Recipe::model, &ModelConfig::norm_eps>,
       .doc = "The epsilon added to the mean square in RMSNorm or to the "
              "variance in LayerNorm.",
       .range = above(0, 1),
       .only = of_transformers()},
      {.path = "model.tie_embeddings",
       .field = member<&Recipe::model, &ModelConfig::tie_embeddings>,
       .doc = "Uses the token embedding as the output layer. gpt2 always does.",
       .only = of_rotary_models()},
      {.path = "model.attention_dropout",
       .field = member<&Recipe::model, &ModelConfig::attention_dropout>,
       .doc = "The probability of dropping an attention weight in training. "
              "The dropped weights are the same on every mesh.",
       .range = between(0, 0.999),
       .only = of_transformers()},
      {.path = "model.dropout",
       .field = member<&Recipe::model, &ModelConfig::dropout>,
       .doc = "The probability of dropping a value of the embeddings, of a "
              "block's residual branches, or of an mlp's hidden layers in "
              "training. The dropped values are the same on every mesh.",
       .range = between(0, 0.999),
       .only = only_of({"gpt2", "vit", "mlp"})},
  };
}

std::vector<Key> linked_in_keys() {
  return {
      {.path = "model.options",
       .field = member<&Recipe::model, &ModelConfig::options>,
       .doc = "The options of a model that a program registers. A value is a "
              "number, a string, a bool, or a list of these.",
       .only = {.key = "model.type", .or_linked_in = true}},
  };
}

std::vector<Key> expert_keys() {
  return {
      {.path = "model.num_experts",
       .field = member<&Recipe::model, &ModelConfig::num_experts>,
       .doc = "The number of experts (feed-forward layers) of a block.",
       .range = between(1, kMaxSize),
       .required = true,
       .only = only_of({"moe"})},
      {.path = "model.num_experts_per_tok",
       .field = member<&Recipe::model, &ModelConfig::num_experts_per_tok>,
       .doc = "The number of experts per token: those with the highest router "
              "scores. At most num_experts.",
       .range = between(1, kMaxSize),
       .only = only_of({"moe"})},
      {.path = "model.router_aux_loss_coef",
       .field = member<&Recipe::model, &ModelConfig::router_aux_loss_coef>,
       .doc = "The weight of the auxiliary loss that balances the load of the "
              "experts. 0 disables it.",
       .range = between(0, 1000),
       .only = only_of({"moe"})},
      {.path = "model.router_z_loss_coef",
       .field = member<&Recipe::model, &ModelConfig::router_z_loss_coef>,
       .doc = "The weight of the router z-loss: the mean square of the "
              "logsumexp of the router's logits. 0 disables it.",
       .range = between(0, 1000),
       .only = only_of({"moe"})},
  };
}

std::vector<Key> image_keys() {
  return {
      {.path = "model.image_size",
       .field = member<&Recipe::model, &ModelConfig::image_size>,
       .doc = "The height and width of an image. 8 for digits.",
       .unit = "pixels",
       .range = between(1, 1 << 16),
       .only = of_image_models()},
      {.path = "model.patch_size",
       .field = member<&Recipe::model, &ModelConfig::patch_size>,
       .doc = "The height and width of the patch that becomes one token. It "
              "must divide image_size.",
       .unit = "pixels",
       .range = between(1, 1 << 16),
       .only = only_of({"vit"})},
      {.path = "model.channels",
       .field = member<&Recipe::model, &ModelConfig::channels>,
       .doc = "The number of values per pixel. 1 for digits.",
       .range = between(1, kMaxSize),
       .only = of_image_models()},
      {.path = "model.num_classes",
       .field = member<&Recipe::model, &ModelConfig::num_classes>,
       .doc = "The number of classes. At least 10 for digits.",
       .range = between(1, kMaxSize),
       .only = of_image_models()},
  };
}

} // namespace

std::vector<Key> model_keys() {
  std::vector<Key> all;
  for (const auto& part :
       {size_keys(),
        language_keys(),
        expert_keys(),
        image_keys(),
        linked_in_keys()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::vector<Key> rope_scaling_keys() {
  using Scaling = RopeScalingConfig;
  constexpr auto kScaling = &ModelConfig::rope_scaling;
  return {
      {.path = "model.rope_scaling.rope_type",
       .field = choice<&Recipe::model, kScaling, &Scaling::rope_type>,
       .doc = "linear divides every frequency by factor. llama3 divides low "
              "frequencies by factor, keeps high ones, and interpolates in "
              "between.",
       .only = of_rotary_models()},
      {.path = "model.rope_scaling.factor",
       .field = member<&Recipe::model, kScaling, &Scaling::factor>,
       .doc = "The ratio of the new to the original sequence length.",
       .range = between(1, 1e6),
       .only = of_rotary_models(),
       .effect =
           {.key = "model.rope_scaling.rope_type",
            .values = {"none"},
            .is_not = true}},
      {.path = "model.rope_scaling.low_freq_factor",
       .field = member<&Recipe::model, kScaling, &Scaling::low_freq_factor>,
       .doc =
           "For llama3: a frequency is low if original_max_position_embeddings "
           "holds fewer than this number of its wavelengths.",
       .range = above(0, 1e6),
       .only = of_rotary_models(),
       .effect = {.key = "model.rope_scaling.rope_type", .values = {"llama3"}}},
      {.path = "model.rope_scaling.high_freq_factor",
       .field = member<&Recipe::model, kScaling, &Scaling::high_freq_factor>,
       .doc = "For llama3: a frequency is high if "
              "original_max_position_embeddings holds more than this number of "
              "its wavelengths. It must be above low_freq_factor.",
       .range = above(0, 1e6),
       .only = of_rotary_models(),
       .effect = {.key = "model.rope_scaling.rope_type", .values = {"llama3"}}},
      {.path = "model.rope_scaling.original_max_position_embeddings",
       .field = member<
           &Recipe::model,
           kScaling,
           &Scaling::original_max_position_embeddings>,
       .doc = "For llama3: the sequence length of the original training.",
       .unit = "tokens",
       .range = between(1, kMaxSize),
       .only = of_rotary_models(),
       .effect = {.key = "model.rope_scaling.rope_type", .values = {"llama3"}}},
  };
}

} // namespace weft::config::keys
