#include "config/schema_keys.h"

namespace weft::recipes::keys {
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

// Of Weft's own; others have model.options.
Condition of_all() {
  return only_of({"llama", "gpt2", "moe", "vit", "mlp"});
}

std::vector<Key> size_keys() {
  return {
      {.path = "model.from",
       .field = member<&Recipe::model, &ModelConfig::from>,
       .doc = "A folder in Hugging Face's form, with config.json and "
              "safetensors: a new run's model is that one, of which the other "
              "keys need not say anything but dropout; docs/hub.md. Empty: "
              "none.",
       .only = of_language_models()},
      {.path = "model.type",
       .field = member<&Recipe::model, &ModelConfig::type>,
       .doc = "The architecture; docs/models.md has them. A program can have "
              "more (docs/your_own_model.md).",
       .choices = {"llama", "gpt2", "moe", "vit", "mlp"}},
      {.path = "model.dim",
       .field = member<&Recipe::model, &ModelConfig::dim>,
       .doc = "Width of the residual stream; a multiple of heads, with an even "
              "quotient where embeddings are rotary (llama, moe).",
       .range = between(1, kMaxSize),
       .required = true,
       .only = of_transformers()},
      {.path = "model.layers",
       .field = member<&Recipe::model, &ModelConfig::layers>,
       .doc = "Transformer blocks; of mlp hidden layers.",
       .range = between(1, 100'000),
       .required = true,
       .only = of_all()},
      {.path = "model.heads",
       .field = member<&Recipe::model, &ModelConfig::heads>,
       .doc = "Attention heads; a multiple of mesh.tp.",
       .range = between(1, kMaxSize),
       .required = true,
       .only = of_transformers()},
      {.path = "model.kv_heads",
       .field = member<&Recipe::model, &ModelConfig::kv_heads>,
       .doc = "Heads of keys and values; divides heads, and divides or is a "
              "multiple of mesh.tp. 0: as many as heads.",
       .range = or_else(0, between(1, kMaxSize)),
       .only = of_rotary_models()},
      {.path = "model.ffn_dim",
       .field = member<&Recipe::model, &ModelConfig::ffn_dim>,
       .doc = "Width inside the feed-forward layers, of moe inside each "
              "expert; of mlp width of the hidden layers.",
       .range = between(1, kMaxSize),
       .required = true,
       .only = of_all()},
  };
}

std::vector<Key> language_keys() {
  return {
      {.path = "model.vocab_size",
       .field = member<&Recipe::model, &ModelConfig::vocab_size>,
       .doc = "Tokens the model knows; at least the tokenizer's (byte: 256).",
       .range = between(1, kMaxSize),
       .only = of_language_models()},
      {.path = "model.max_position_embeddings",
       .field = member<&Recipe::model, &ModelConfig::max_position_embeddings>,
       .doc = "Positions that are learned. 0: data.sequence_length.",
       .unit = "tokens",
       .range = or_else(0, between(1, kMaxSize)),
       .only = only_of({"gpt2"})},
      {.path = "model.rope_theta",
       .field = member<&Recipe::model, &ModelConfig::rope_theta>,
       .doc = "Base of the rotary embedding's wavelengths.",
       .range = above(0, 1e12),
       .only = of_rotary_models()},
      {.path = "model.norm_eps",
       .field = member<&Recipe::model, &ModelConfig::norm_eps>,
       .doc = "Added to the mean square in RMSNorm, to the variance in "
              "LayerNorm.",
       .range = above(0, 1),
       .only = of_transformers()},
      {.path = "model.tie_embeddings",
       .field = member<&Recipe::model, &ModelConfig::tie_embeddings>,
       .doc = "Use the token embedding as the output layer too; gpt2 always "
              "does.",
       .only = of_rotary_models()},
      {.path = "model.attention_dropout",
       .field = member<&Recipe::model, &ModelConfig::attention_dropout>,
       .doc = "Probability that training drops an attention weight; which ones "
              "is the same on every mesh.",
       .range = between(0, 0.999),
       .only = of_transformers()},
      {.path = "model.dropout",
       .field = member<&Recipe::model, &ModelConfig::dropout>,
       .doc = "Probability that training drops a value of the embeddings, of "
              "what a block adds, or of mlp's hidden layers; which ones is the "
              "same on every mesh.",
       .range = between(0, 0.999),
       .only = only_of({"gpt2", "vit", "mlp"})},
  };
}

std::vector<Key> linked_in_keys() {
  return {
      {.path = "model.options",
       .field = member<&Recipe::model, &ModelConfig::options>,
       .doc = "What the program's model asks for: names, each with a number, a "
              "text, true or false, or a list of them.",
       .only = {.key = "model.type", .or_linked_in = true}},
  };
}

std::vector<Key> expert_keys() {
  return {
      {.path = "model.num_experts",
       .field = member<&Recipe::model, &ModelConfig::num_experts>,
       .doc = "Feed-forward layers of a block, of which a token takes a few.",
       .range = between(1, kMaxSize),
       .required = true,
       .only = only_of({"moe"})},
      {.path = "model.num_experts_per_tok",
       .field = member<&Recipe::model, &ModelConfig::num_experts_per_tok>,
       .doc = "Experts that a token takes, those that the router scores "
              "highest; at most num_experts.",
       .range = between(1, kMaxSize),
       .only = only_of({"moe"})},
      {.path = "model.router_aux_loss_coef",
       .field = member<&Recipe::model, &ModelConfig::router_aux_loss_coef>,
       .doc = "Weight of the loss that balances the experts. 0: none.",
       .range = between(0, 1000),
       .only = only_of({"moe"})},
      {.path = "model.router_z_loss_coef",
       .field = member<&Recipe::model, &ModelConfig::router_z_loss_coef>,
       .doc = "Weight of the loss that keeps the router's logits small, the "
              "mean square of their logsumexp. 0: none.",
       .range = between(0, 1000),
       .only = only_of({"moe"})},
  };
}

std::vector<Key> image_keys() {
  return {
      {.path = "model.image_size",
       .field = member<&Recipe::model, &ModelConfig::image_size>,
       .doc = "Height and width of an image; of digits 8.",
       .unit = "pixels",
       .range = between(1, 1 << 16),
       .only = of_image_models()},
      {.path = "model.patch_size",
       .field = member<&Recipe::model, &ModelConfig::patch_size>,
       .doc = "Height and width of what becomes one token; divides image_size.",
       .unit = "pixels",
       .range = between(1, 1 << 16),
       .only = only_of({"vit"})},
      {.path = "model.channels",
       .field = member<&Recipe::model, &ModelConfig::channels>,
       .doc = "Values of a pixel; of digits 1.",
       .range = between(1, kMaxSize),
       .only = of_image_models()},
      {.path = "model.num_classes",
       .field = member<&Recipe::model, &ModelConfig::num_classes>,
       .doc = "What an image may show; of digits at least 10.",
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
       .field = member<&Recipe::model, kScaling, &Scaling::rope_type>,
       .doc = "linear: every frequency is divided by factor. llama3: the low "
              "ones are, the high ones are not, those between in part.",
       .choices = {"none", "linear", "llama3"},
       .only = of_rotary_models()},
      {.path = "model.rope_scaling.factor",
       .field = member<&Recipe::model, kScaling, &Scaling::factor>,
       .doc = "How much longer sequences are.",
       .range = between(1, 1e6),
       .only = of_rotary_models()},
      {.path = "model.rope_scaling.low_freq_factor",
       .field = member<&Recipe::model, kScaling, &Scaling::low_freq_factor>,
       .doc = "Of llama3: a frequency is low if fewer than so many wavelengths "
              "fit into original_max_position_embeddings.",
       .range = above(0, 1e6),
       .only = of_rotary_models()},
      {.path = "model.rope_scaling.high_freq_factor",
       .field = member<&Recipe::model, kScaling, &Scaling::high_freq_factor>,
       .doc = "Of llama3: a frequency is high if more than so many do; above "
              "low_freq_factor.",
       .range = above(0, 1e6),
       .only = of_rotary_models()},
      {.path = "model.rope_scaling.original_max_position_embeddings",
       .field = member<
           &Recipe::model,
           kScaling,
           &Scaling::original_max_position_embeddings>,
       .doc = "Of llama3: the length that the model was first trained on.",
       .unit = "tokens",
       .range = between(1, kMaxSize),
       .only = of_rotary_models()},
  };
}

} // namespace weft::recipes::keys
