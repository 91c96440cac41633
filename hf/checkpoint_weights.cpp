#include "hf/checkpoint_weights.h"

#include <span>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/rounding.h"
#include "hf/config_json.h"
#include "hf/load_weights.h"
#include "mesh/error/error.h"

namespace weft::hf {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr const char* kAveragePrefix = "ema.";

std::string key_of(const std::string& name) {
  return "model." + name;
}

// Returns "x.lora_A.weight" for "x.weight".
std::string adapter_name(const std::string& name, const char* which) {
  return fmt::format(
      "{}.{}.weight", name.substr(0, name.size() - kWeight.size()), which);
}

// Returns "x.weight" for "x.lora_A.weight", and "" for other names.
std::string adapted_name(const std::string& name) {
  for (const std::string_view ending : {".lora_A.weight", ".lora_B.weight"}) {
    if (name.ends_with(ending)) {
      return name.substr(0, name.size() - ending.size()) + std::string(kWeight);
    }
  }
  return "";
}

std::string text_in(const nlohmann::json& layout, const char* key) {
  const auto found = layout.find(key);
  return found != layout.end() && found->is_string() ? found->get<std::string>()
                                                     : "";
}

} // namespace

CheckpointWeights::CheckpointWeights(
    const std::filesystem::path& step_folder,
    bool averaged)
    : pin_(step_folder),
      manifest_(checkpoint::read_manifest(pin_.folder())),
      reader_(pin_.folder(), manifest_),
      source_(step_folder.string()),
      averaged_(averaged) {
  read_layout();
  map_ = tensor_map(recipe_.model);
  check_tensors();
  if (averaged_) {
    check_average();
  }
}

// Reads the recipe, or the config.json if the model was imported.
void CheckpointWeights::read_layout() {
  const auto layout = base::parse_json(manifest_.layout);
  config_ = text_in(layout, "config");
  const auto recipe = text_in(layout, "recipe");
  if (!config_.empty()) {
    recipe_.model = parse_config(config_, source_ + " (config)").model;
    recipe_.model.from = text_in(layout, "from");
    recipe_.data.sequence_length = 0;
  } else if (!recipe.empty()) {
    recipe_ = config::parse_stored_recipe(recipe, source_ + " (recipe)");
  } else {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: the model is unknown, because the checkpoint contains neither a "
        "recipe nor a config.json",
        source_));
  }
  if (has_hub_form(recipe_.model.type)) {
    check_tensor_count(recipe_.model, source_);
  } else {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: model.type={} cannot be exported to Hugging Face format; "
        "supported are llama, gpt2 and moe",
        source_,
        recipe_.model.type));
  }
}

void CheckpointWeights::check_tensors() {
  std::vector<std::string> faults;
  for (const auto& [name, tensor] : map_.model) {
    const auto found = manifest_.tensors.find(key_of(name));
    if (found == manifest_.tensors.end()) {
      faults.push_back(name + " is missing");
    } else if (found->second.shape != tensor.shape) {
      faults.push_back(fmt::format(
          "{} is {}, not {}",
          name,
          checkpoint::to_text(found->second.shape),
          checkpoint::to_text(tensor.shape)));
    }
  }
  for (const auto& [key, record] : manifest_.tensors) {
    if (!key.starts_with("model.")) {
      continue;
    }
    const auto name = key.substr(key_of("").size());
    if (is_adapter(name) && map_.model.contains(adapted_name(name))) {
      num_adapters_ += name.ends_with(".lora_A.weight") ? 1 : 0;
    } else if (!map_.model.contains(name)) {
      faults.push_back(name + " is not expected");
    }
  }
  if (!faults.empty()) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: its tensors do not match its model: {}",
        source_,
        fmt::join(faults, "; ")));
  }
}

void CheckpointWeights::check_average() const {
  const auto first = manifest_.tensors.lower_bound(kAveragePrefix);
  if (first == manifest_.tensors.end() ||
      !first->first.starts_with(kAveragePrefix)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: the checkpoint has no EMA weights. Train with ema.decay to save "
        "them",
        source_));
  }
}

std::string CheckpointWeights::stored_key(const std::string& name) const {
  const auto averaged = std::string(kAveragePrefix) + name;
  return averaged_ && manifest_.tensors.contains(averaged) ? averaged
                                                           : key_of(name);
}

at::ScalarType CheckpointWeights::dtype(const std::string& name) const {
  return manifest_.tensors.at(stored_key(name)).dtype;
}

at::Tensor CheckpointWeights::read_stored(
    const std::string& name,
    const Box& box) {
  auto data = at::empty(box.shape, at::TensorOptions().dtype(dtype(name)));
  reader_.read_box(
      stored_key(name),
      box.offset,
      box.shape,
      {static_cast<std::byte*>(data.mutable_data_ptr()), data.nbytes()});
  return data;
}

// Merges the adapters like tp::merge_lora().
at::Tensor CheckpointWeights::read(const std::string& name, const Box& box) {
  auto data = read_stored(name, box);
  const auto down = name.ends_with(kWeight) ? adapter_name(name, "lora_A") : "";
  if (down.empty() || !manifest_.tensors.contains(key_of(down))) {
    return data;
  }
  const auto up = adapter_name(name, "lora_B");
  const auto rank = manifest_.tensors.at(key_of(down)).shape.front();
  const auto a = read_stored(down, {{0, box.offset[1]}, {rank, box.shape[1]}});
  const auto b = read_stored(up, {{box.offset[0], 0}, {box.shape[0], rank}});
  const auto scale = recipe_.lora.alpha / static_cast<double>(rank);
  const auto merged = at::add(
      data.to(at::kFloat), at::mm(b.to(at::kFloat), a.to(at::kFloat)), scale);
  if (const auto fault = checkpoint::describe_non_finite(
          merged, {.name = name, .offset = box.offset});
      !fault.empty()) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: {} after its adapter is added. Export a step with finite weights",
        source_,
        fault));
  }
  return merged;
}

} // namespace weft::hf
