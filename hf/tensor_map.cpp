#include "hf/tensor_map.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "checkpoint/files/limits.h"
#include "hf/config_json.h"
#include "mesh/error/error.h"

namespace weft::hf {
namespace {

using MapSizes = std::vector<int64_t>;

class MapBuilder {
 public:
  explicit MapBuilder(TensorMap& map) : map_(map) {}

  void same(const std::string& name, MapSizes shape) {
    map_.hub.emplace(name, shape);
    map_.model.emplace(
        name,
        ModelTensor{
            .shape = shape,
            .pieces = {
                {.hub_name = name,
                 .offset = MapSizes(shape.size(), 0),
                 .shape = shape,
                 .hub_offset = MapSizes(shape.size(), 0)}}});
  }

  // Adds a part of a tensor of the folder: the columns of a transposed matrix,
  // or the elements of a vector, from `first` on.
  void part(
      const std::string& name,
      MapSizes shape,
      const std::string& hub_name,
      int64_t first) {
    const bool is_matrix = shape.size() == 2;
    Piece piece{
        .hub_name = hub_name,
        .offset = MapSizes(shape.size(), 0),
        .shape = shape,
        .hub_offset = is_matrix ? MapSizes{0, first} : MapSizes{first},
        .transposed = is_matrix};
    map_.model.emplace(
        name,
        ModelTensor{.shape = std::move(shape), .pieces = {std::move(piece)}});
  }

  void transposed(const std::string& name, MapSizes shape) {
    map_.hub.emplace(name, MapSizes{shape[1], shape[0]});
    part(name, std::move(shape), name, 0);
  }

  // Adds a matrix of the folder as rows from `first_row` on of one expert.
  void expert(
      const std::string& name,
      int64_t expert,
      int64_t first_row,
      const std::string& hub_name,
      MapSizes shape) {
    map_.hub.emplace(hub_name, shape);
    map_.model.at(name).pieces.push_back(
        {.hub_name = hub_name,
         .offset = {expert, first_row, 0},
         .shape = {1, shape[0], shape[1]},
         .hub_offset = {0, 0}});
  }

  TensorMap& map() { return map_; }

 private:
  TensorMap& map_;
};

void add_attention(
    MapBuilder& builder,
    const std::string& layer,
    const config::ModelConfig& model) {
  const int64_t D = model.dim;
  const int64_t kv = D / model.heads * model.kv_heads;
  const auto attention = layer + "self_attn.";
  builder.same(attention + "q_proj.weight", {D, D});
  builder.same(attention + "k_proj.weight", {kv, D});
  builder.same(attention + "v_proj.weight", {kv, D});
  builder.same(attention + "o_proj.weight", {D, D});
}

void add_llama_mlp(
    MapBuilder& builder,
    const std::string& layer,
    const config::ModelConfig& model) {
  builder.same(layer + "mlp.gate_proj.weight", {model.ffn_dim, model.dim});
  builder.same(layer + "mlp.up_proj.weight", {model.ffn_dim, model.dim});
  builder.same(layer + "mlp.down_proj.weight", {model.dim, model.ffn_dim});
}

// Adds the experts. Mixtral stores three matrices per expert: gate, down and
// up.
void add_experts(
    MapBuilder& builder,
    const std::string& layer,
    const config::ModelConfig& model) {
  const int64_t D = model.dim;
  const int64_t F = model.ffn_dim;
  const int64_t E = model.num_experts;
  const auto theirs = layer + "block_sparse_moe.";
  builder.map().hub.emplace(theirs + "gate.weight", MapSizes{E, D});
  builder.map().model.emplace(
      layer + "mlp.gate.weight",
      ModelTensor{
          .shape = {E, D},
          .pieces = {
              {.hub_name = theirs + "gate.weight",
               .offset = {0, 0},
               .shape = {E, D},
               .hub_offset = {0, 0}}}});
  const auto gate_up = layer + "mlp.experts.gate_up_proj";
  const auto down = layer + "mlp.experts.down_proj";
  builder.map().model.emplace(gate_up, ModelTensor{{E, 2 * F, D}, {}});
  builder.map().model.emplace(down, ModelTensor{{E, D, F}, {}});
  for (int64_t e = 0; e < E; ++e) {
    const auto expert = fmt::format("{}experts.{}.", theirs, e);
    builder.expert(gate_up, e, 0, expert + "w1.weight", {F, D});
    builder.expert(gate_up, e, F, expert + "w3.weight", {F, D});
    builder.expert(down, e, 0, expert + "w2.weight", {D, F});
  }
}

TensorMap llama_map(const config::ModelConfig& model) {
  TensorMap map;
  map.prefix = "model.";
  MapBuilder builder(map);
  const int64_t D = model.dim;
  builder.same("model.embed_tokens.weight", {model.vocab_size, D});
  for (int64_t i = 0; i < model.layers; ++i) {
    const auto layer = fmt::format("model.layers.{}.", i);
    builder.same(layer + "input_layernorm.weight", {D});
    builder.same(layer + "post_attention_layernorm.weight", {D});
    add_attention(builder, layer, model);
    model.type == "moe" ? add_experts(builder, layer, model)
                        : add_llama_mlp(builder, layer, model);
  }
  builder.same("model.norm.weight", {D});
  if (model.tie_embeddings) {
    map.copies.emplace("lm_head.weight", "model.embed_tokens.weight");
  } else {
    builder.same("lm_head.weight", {model.vocab_size, D});
  }
  return map;
}

// Adds a block of GPT-2. The folder stores matrices transposed, and the query,
// key and value projections as one tensor.
void add_gpt2_block(
    MapBuilder& builder,
    const std::string& block,
    const config::ModelConfig& model) {
  const int64_t D = model.dim;
  const int64_t F = model.ffn_dim;
  for (const char* norm : {"ln_1.", "ln_2."}) {
    builder.same(block + norm + "weight", {D});
    builder.same(block + norm + "bias", {D});
  }
  const auto fused = block + "attn.c_attn.";
  builder.map().hub.emplace(fused + "weight", MapSizes{D, 3 * D});
  builder.map().hub.emplace(fused + "bias", MapSizes{3 * D});
  int64_t first = 0;
  for (const char* part : {"q_proj.", "k_proj.", "v_proj."}) {
    const auto ours = block + "attn." + part;
    builder.part(ours + "weight", {D, D}, fused + "weight", first);
    builder.part(ours + "bias", {D}, fused + "bias", first);
    first += D;
  }
  builder.transposed(block + "attn.c_proj.weight", {D, D});
  builder.same(block + "attn.c_proj.bias", {D});
  builder.transposed(block + "mlp.c_fc.weight", {F, D});
  builder.same(block + "mlp.c_fc.bias", {F});
  builder.transposed(block + "mlp.c_proj.weight", {D, F});
  builder.same(block + "mlp.c_proj.bias", {D});
}

TensorMap gpt2_map(const config::ModelConfig& model) {
  TensorMap map;
  map.prefix = "transformer.";
  MapBuilder builder(map);
  builder.same("transformer.wte.weight", {model.vocab_size, model.dim});
  builder.same(
      "transformer.wpe.weight", {model.max_position_embeddings, model.dim});
  for (int64_t i = 0; i < model.layers; ++i) {
    add_gpt2_block(builder, fmt::format("transformer.h.{}.", i), model);
  }
  builder.same("transformer.ln_f.weight", {model.dim});
  builder.same("transformer.ln_f.bias", {model.dim});
  map.copies.emplace("lm_head.weight", "transformer.wte.weight");
  return map;
}

} // namespace

void check_tensor_count(
    const config::ModelConfig& model,
    const std::string& source) {
  constexpr int64_t kOthersOfALayer = 16; // an upper bound
  const bool is_moe = model.type == "moe";
  const auto experts = is_moe ? model.num_experts : 0;
  const auto in_layer = kOthersOfALayer + 3 * experts;
  if (model.layers > checkpoint::limits::kTensors / in_layer) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: {} layers{} exceed the limit of {} tensors",
        source,
        model.layers,
        is_moe ? fmt::format(" of {} experts each", experts) : "",
        checkpoint::limits::kTensors));
  }
}

TensorMap tensor_map(const config::ModelConfig& model) {
  TORCH_INTERNAL_ASSERT(has_hub_form(model.type), model.type);
  auto sizes = model;
  if (sizes.kv_heads == 0) {
    sizes.kv_heads = sizes.heads;
  }
  return model.type == "gpt2" ? gpt2_map(sizes) : llama_map(sizes);
}

bool is_obsolete_buffer(std::string_view hub_name) {
  constexpr std::array kEndings{
      ".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq"};
  return std::ranges::any_of(kEndings, [&](std::string_view ending) {
    return hub_name.ends_with(ending);
  });
}

} // namespace weft::hf
