#include <array>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "hf/config_json.h"
#include "hf/json_file.h"

namespace weft::hf {
namespace {

using Json = nlohmann::ordered_json;

Json rope_parameters(const config::ModelConfig& model) {
  const auto& scaling = model.rope_scaling;
  const bool is_scaled = scaling.rope_type != config::RopeType::kNone;
  Json rope{{"rope_theta", model.rope_theta}};
  rope["rope_type"] = is_scaled ? to_string(scaling.rope_type) : "default";
  if (is_scaled) {
    rope["factor"] = scaling.factor;
  }
  if (scaling.rope_type == config::RopeType::kLlama3) {
    rope["low_freq_factor"] = scaling.low_freq_factor;
    rope["high_freq_factor"] = scaling.high_freq_factor;
    rope["original_max_position_embeddings"] =
        scaling.original_max_position_embeddings;
  }
  return rope;
}

// Writes the rotary parameters twice: for transformers from version 5 on, and
// for older versions.
void add_llama_keys(
    const config::ModelConfig& model,
    int64_t sequence_length,
    Json& json) {
  const auto rope = rope_parameters(model);
  json["hidden_size"] = model.dim;
  json["intermediate_size"] = model.ffn_dim;
  json["num_hidden_layers"] = model.layers;
  json["num_attention_heads"] = model.heads;
  json["num_key_value_heads"] = model.kv_heads;
  json["head_dim"] = model.dim / model.heads;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = model.norm_eps;
  json["attention_dropout"] = model.attention_dropout;
  json["tie_word_embeddings"] = model.tie_embeddings;
  json["max_position_embeddings"] = sequence_length;
  json["rope_theta"] = model.rope_theta;
  json["rope_scaling"] = nullptr;
  if (model.rope_scaling.rope_type != config::RopeType::kNone) {
    json["rope_scaling"] = rope;
  }
  json["rope_parameters"] = rope;
  if (model.type == "moe") {
    json["num_local_experts"] = model.num_experts;
    json["num_experts_per_tok"] = model.num_experts_per_tok;
    json["router_aux_loss_coef"] = model.router_aux_loss_coef;
    json["sliding_window"] = nullptr;
  } else {
    json["attention_bias"] = false;
    json["mlp_bias"] = false;
  }
}

void add_gpt2_keys(const config::ModelConfig& model, Json& json) {
  json["n_embd"] = model.dim;
  json["n_layer"] = model.layers;
  json["n_head"] = model.heads;
  json["n_inner"] = model.ffn_dim;
  json["n_positions"] = model.max_position_embeddings;
  json["activation_function"] = "gelu_new";
  json["layer_norm_epsilon"] = model.norm_eps;
  json["resid_pdrop"] = model.dropout;
  json["embd_pdrop"] = model.dropout;
  json["attn_pdrop"] = model.attention_dropout;
  json["tie_word_embeddings"] = true;
}

} // namespace

std::string write_config(
    const config::ModelConfig& model,
    int64_t sequence_length,
    std::string_view dtype,
    std::string_view base) {
  Json json;
  const bool is_gpt2 = model.type == "gpt2";
  const bool is_moe = model.type == "moe";
  json["architectures"] = {
      is_gpt2  ? "GPT2LMHeadModel"
      : is_moe ? "MixtralForCausalLM"
               : "LlamaForCausalLM"};
  json["model_type"] = is_gpt2 ? "gpt2" : is_moe ? "mixtral" : "llama";
  json["vocab_size"] = model.vocab_size;
  if (is_gpt2) {
    add_gpt2_keys(model, json);
  } else {
    add_llama_keys(model, sequence_length, json);
  }
  // The tokens are null unless the imported model has some. If they were
  // absent, transformers would use tokens of another vocabulary by default.
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    json[token] = nullptr;
  }
  json["torch_dtype"] = dtype; // the name before transformers 4.56
  json["dtype"] = dtype;
  if (!base.empty()) {
    const auto given = parse_json_object(base, kConfigName);
    for (const char* key :
         {"bos_token_id",
          "eos_token_id",
          "pad_token_id",
          "max_position_embeddings",
          "initializer_range"}) {
      if (given.contains(key) && !(is_gpt2 && key[0] == 'm')) {
        json[key] = given[key];
      }
    }
  }
  return base::strict_json_text(json, 2) + "\n";
}

} // namespace weft::hf
