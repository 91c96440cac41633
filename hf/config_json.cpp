#include "hf/config_json.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "checkpoint/files/folder.h"
#include "hf/json_file.h"
#include "mesh/error/error.h"

namespace weft::hf {
namespace {

using Json = nlohmann::ordered_json;

class ConfigReader {
 public:
  ConfigReader(const Json& json, std::string source, std::string inside = "")
      : json_(json), source_(std::move(source)), inside_(std::move(inside)) {}

  [[noreturn]] void refuse_key(std::string_view key, const std::string& what)
      const {
    mesh::throw_error<mesh::UsageError>(
        fmt::format("{}: {}{}: {}", source_, inside_, key, what));
  }

  const Json* find(std::string_view key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<int64_t> integer(std::string_view key) const {
    const auto* value = find(key);
    if (value == nullptr) {
      return std::nullopt;
    }
    if (!value->is_number_integer()) {
      refuse_key(key, "expected an integer, found " + text_of(*value));
    }
    return value->get<int64_t>();
  }

  int64_t required(std::string_view key) const {
    const auto value = integer(key);
    if (!value) {
      refuse_key(key, "is required but missing");
    }
    return *value;
  }

  double number(std::string_view key, double otherwise) const {
    const auto* value = find(key);
    if (value == nullptr) {
      return otherwise;
    }
    if (!value->is_number()) {
      refuse_key(key, "expected a number, found " + text_of(*value));
    }
    return value->get<double>();
  }

  bool flag(std::string_view key, bool otherwise) const {
    const auto* value = find(key);
    if (value == nullptr) {
      return otherwise;
    }
    if (!value->is_boolean()) {
      refuse_key(key, "expected a bool, found " + text_of(*value));
    }
    return value->get<bool>();
  }

  std::string text(std::string_view key, std::string otherwise) const {
    const auto* value = find(key);
    if (value == nullptr) {
      return otherwise;
    }
    if (!value->is_string()) {
      refuse_key(key, "expected a string, found " + text_of(*value));
    }
    return value->get<std::string>();
  }

  // Returns a reader of the map at `key`. An absent map counts as empty.
  ConfigReader map(std::string_view key) const {
    static const Json kNone = Json::object();
    const auto* value = find(key);
    if (value != nullptr && !value->is_object()) {
      refuse_key(key, "expected a map, found " + text_of(*value));
    }
    return {
        value == nullptr ? kNone : *value,
        source_,
        fmt::format("{}{}.", inside_, key)};
  }

  void check_one_of(
      std::string_view key,
      const std::string& value,
      std::initializer_list<std::string_view> known) const {
    if (std::ranges::find(known, value) == known.end()) {
      refuse_key(
          key,
          fmt::format(
              "\"{}\" is not supported, expected one of: {}",
              shortened(value),
              fmt::join(known.begin(), known.end(), ", ")));
    }
  }

  // Rejects a feature that Weft's models lack, unless the key is absent or
  // `off`.
  void check_off(std::string_view key, bool off) const {
    if (flag(key, off) != off) {
      refuse_key(key, fmt::format("got {}, only {} is supported", !off, off));
    }
  }

  void check_absent(std::string_view key, const char* what) const {
    if (const auto* value = find(key)) {
      refuse_key(
          key, fmt::format("{} is not supported: {}", what, text_of(*value)));
    }
  }

  const Json& json() const { return json_; }

 private:
  static std::string shortened(std::string text) {
    constexpr size_t kMax = 60;
    return text.size() > kMax ? text.substr(0, kMax) + "..." : text;
  }
  static std::string text_of(const Json& value) {
    return shortened(value.dump(-1, ' ', true, Json::error_handler_t::replace));
  }

  const Json& json_;
  std::string source_;
  std::string inside_;
};

// Fills fields of the model and records the key that each value came from.
class Filler {
 public:
  Filler(HubConfig& config, const ConfigReader& reader)
      : config_(config), reader_(reader) {}

  void given(const char* key, std::string hub_key) {
    config_.given.push_back({key, std::move(hub_key)});
  }
  void size(int64_t& field, const char* key, const char* hub_key) {
    field = reader_.required(hub_key);
    given(key, hub_key);
  }

 private:
  HubConfig& config_;
  const ConfigReader& reader_;
};

// Rejects rotary embeddings that differ between layers or cover only a part of
// each head.
void check_rope(const ConfigReader& reader, const ConfigReader& rope) {
  for (const auto& [key, value] : rope.json().items()) {
    if (value.is_object()) {
      rope.refuse_key(
          key, "different rotary embeddings per layer are not supported");
    }
  }
  for (const auto* each : {&reader, &rope}) {
    if (each->number("partial_rotary_factor", 1.0) != 1.0) {
      each->refuse_key(
          "partial_rotary_factor",
          "partial rotary embeddings are not supported");
    }
  }
}

void read_rope_scaling(
    const ConfigReader& reader,
    const ConfigReader& rope,
    const std::string& name,
    HubConfig& config) {
  auto& scaling = config.model.rope_scaling;
  const auto required = [&](double& field, const char* key) {
    if (rope.find(key) == nullptr) {
      rope.refuse_key(
          key,
          fmt::format(
              "rope type {} requires this key, but it is missing",
              scaling.rope_type));
    }
    field = rope.number(key, 0);
    config.given.push_back(
        {fmt::format("model.rope_scaling.{}", key),
         fmt::format("{}.{}", name, key)});
  };
  required(scaling.factor, "factor");
  if (scaling.rope_type != config::RopeType::kLlama3) {
    return;
  }
  required(scaling.low_freq_factor, "low_freq_factor");
  required(scaling.high_freq_factor, "high_freq_factor");
  const std::string length = "original_max_position_embeddings";
  const auto original = rope.integer(length);
  scaling.original_max_position_embeddings =
      original ? *original : reader.required("max_position_embeddings");
  config.given.push_back(
      {"model.rope_scaling." + length,
       original ? fmt::format("{}.{}", name, length)
                : "max_position_embeddings"});
}

// Reads rope_parameters, or rope_scaling and rope_theta as older versions of
// transformers write them.
void read_rope(
    const ConfigReader& reader,
    double default_theta,
    HubConfig& config) {
  // transformers uses the older key if both exist.
  const std::string name = reader.map("rope_scaling").json().empty()
                               ? "rope_parameters"
                               : "rope_scaling";
  const auto rope = reader.map(name);
  check_rope(reader, rope);
  const bool theta_inside = rope.find("rope_theta") != nullptr;
  config.model.rope_theta =
      (theta_inside ? rope : reader).number("rope_theta", default_theta);
  config.given.push_back(
      {"model.rope_theta", theta_inside ? name + ".rope_theta" : "rope_theta"});
  // Older files name the key `type`.
  const std::string type_key =
      rope.find("rope_type") != nullptr ? "rope_type" : "type";
  const auto type = rope.text(type_key, "default");
  rope.check_one_of(type_key, type, {"default", "linear", "llama3"});
  config.model.rope_scaling.rope_type =
      config::choice_of<config::RopeType>(type).value_or(
          config::RopeType::kNone);
  config.given.push_back(
      {"model.rope_scaling.rope_type", fmt::format("{}.{}", name, type_key)});
  if (type != "default") {
    read_rope_scaling(reader, rope, name, config);
  }
}

void read_llama_like(
    const ConfigReader& reader,
    double default_theta,
    double default_eps,
    HubConfig& config) {
  auto& model = config.model;
  Filler fill(config, reader);
  fill.size(model.dim, "model.dim", "hidden_size");
  fill.size(model.layers, "model.layers", "num_hidden_layers");
  fill.size(model.heads, "model.heads", "num_attention_heads");
  fill.size(model.ffn_dim, "model.ffn_dim", "intermediate_size");
  fill.size(model.vocab_size, "model.vocab_size", "vocab_size");
  model.kv_heads = reader.integer("num_key_value_heads").value_or(model.heads);
  fill.given("model.kv_heads", "num_key_value_heads");
  model.norm_eps = reader.number("rms_norm_eps", default_eps);
  fill.given("model.norm_eps", "rms_norm_eps");
  model.tie_embeddings = reader.flag("tie_word_embeddings", false);
  fill.given("model.tie_embeddings", "tie_word_embeddings");
  read_rope(reader, default_theta, config);

  reader.check_one_of(
      "hidden_act", reader.text("hidden_act", "silu"), {"silu", "swish"});
  const auto head_dim = reader.integer("head_dim");
  if (head_dim && (*head_dim < 1 || model.heads < 1 ||
                   *head_dim > model.dim / model.heads ||
                   *head_dim * model.heads != model.dim)) {
    reader.refuse_key(
        "head_dim",
        fmt::format(
            "got {}, expected hidden_size={} / num_attention_heads={}",
            *head_dim,
            model.dim,
            model.heads));
  }
}

void read_llama(const ConfigReader& reader, HubConfig& config) {
  reader.check_off("attention_bias", false);
  reader.check_off("mlp_bias", false);
  reader.check_absent("sliding_window", "attention to a window");
  read_llama_like(reader, 10000.0, 1e-6, config);
}

void read_mixtral(const ConfigReader& reader, HubConfig& config) {
  auto& model = config.model;
  Filler fill(config, reader);
  reader.check_absent("sliding_window", "attention to a window");
  read_llama_like(reader, 1e6, 1e-5, config);
  fill.size(model.num_experts, "model.num_experts", "num_local_experts");
  model.num_experts_per_tok = reader.integer("num_experts_per_tok").value_or(2);
  fill.given("model.num_experts_per_tok", "num_experts_per_tok");
}

void read_gpt2(const ConfigReader& reader, HubConfig& config) {
  auto& model = config.model;
  Filler fill(config, reader);
  fill.size(model.dim, "model.dim", "n_embd");
  fill.size(model.layers, "model.layers", "n_layer");
  fill.size(model.heads, "model.heads", "n_head");
  fill.size(model.vocab_size, "model.vocab_size", "vocab_size");
  fill.size(
      model.max_position_embeddings,
      "model.max_position_embeddings",
      "n_positions");
  const auto inner = reader.integer("n_inner");
  if (!inner && (model.dim < 1 || model.dim > 1 << 24)) {
    reader.refuse_key("n_embd", fmt::format("{} is not a width", model.dim));
  }
  model.ffn_dim = inner.value_or(4 * model.dim);
  fill.given("model.ffn_dim", inner ? "n_inner" : "n_embd");
  model.norm_eps = reader.number("layer_norm_epsilon", 1e-5);
  fill.given("model.norm_eps", "layer_norm_epsilon");

  reader.check_one_of(
      "activation_function",
      reader.text("activation_function", "gelu_new"),
      {"gelu_new", "gelu_pytorch_tanh"});
  reader.check_off("scale_attn_weights", true);
  reader.check_off("scale_attn_by_inverse_layer_idx", false);
  reader.check_off("reorder_and_upcast_attn", false);
  reader.check_off("add_cross_attention", false);
  reader.check_off("tie_word_embeddings", true);
}

struct HubType {
  std::string_view model_type;
  std::string_view type;
  std::string_view architecture;
  void (*read)(const ConfigReader& reader, HubConfig& config);
};

constexpr std::array kHubTypes{
    HubType{"llama", "llama", "LlamaForCausalLM", read_llama},
    HubType{"gpt2", "gpt2", "GPT2LMHeadModel", read_gpt2},
    HubType{"mixtral", "moe", "MixtralForCausalLM", read_mixtral}};

const HubType& type_of(const ConfigReader& reader) {
  const auto name = reader.text("model_type", "");
  const auto* found = std::ranges::find(kHubTypes, name, &HubType::model_type);
  if (found == kHubTypes.end()) {
    reader.check_one_of("model_type", name, {"llama", "gpt2", "mixtral"});
  }
  const auto* architectures = reader.find("architectures");
  if (architectures == nullptr) {
    return *found;
  }
  if (!architectures->is_array()) {
    reader.refuse_key("architectures", "expected a list");
  }
  for (const auto& each : *architectures) {
    if (!each.is_string() || each.get<std::string>() != found->architecture) {
      reader.refuse_key(
          "architectures",
          fmt::format(
              "{} is not supported, expected one of: LlamaForCausalLM, "
              "GPT2LMHeadModel, MixtralForCausalLM",
              each.dump(-1, ' ', true, Json::error_handler_t::replace)));
    }
  }
  return *found;
}

} // namespace

HubConfig parse_config(std::string_view text, const std::string& source) {
  const auto json = parse_json_object(text, source);
  const ConfigReader reader(json, source);
  const auto& type = type_of(reader);
  reader.check_absent("quantization_config", "a quantised model");
  HubConfig config;
  config.model.type = type.type;
  config.given.push_back({"model.type", "model_type"});
  type.read(reader, config);
  check_values(config, source);
  return config;
}

HubConfig read_config(const std::filesystem::path& folder) {
  const auto opened = checkpoint::Folder::open(folder);
  return parse_config(
      read_small_file(opened, kConfigName, kMaxConfigBytes),
      (folder / kConfigName).string());
}

bool has_hub_form(std::string_view model_type) {
  return std::ranges::find(kHubTypes, model_type, &HubType::type) !=
         kHubTypes.end();
}

} // namespace weft::hf
