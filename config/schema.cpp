#include "config/schema.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/schema_keys.h"

namespace weft::config {
std::span<const Key> schema() {
  static const std::vector<Key> table = [] {
    std::vector<Key> all;
    for (const auto& part :
         {keys::run_keys(),
          keys::model_keys(),
          keys::rope_scaling_keys(),
          keys::tp_keys(),
          keys::ddp_keys(),
          keys::fsdp_keys(),
          keys::comm_keys(),
          keys::elastic_keys(),
          keys::data_keys(),
          keys::train_keys(),
          keys::lora_keys(),
          keys::optimizer_keys(),
          keys::lifecycle_keys(),
          keys::checkpoint_keys(),
          keys::integrity_check_keys(),
          keys::straggler_detection_keys(),
          keys::observability_keys(),
          keys::link_keys()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

std::span<const Section> sections() {
  static const std::vector<Section> table = {
      {"mesh",
       "The device mesh. dp * dp_shard * tp must equal the number of ranks."},
      {"model", "The model."},
      {"model.rope_scaling",
       "The scaling of rotary embeddings for longer sequences, as in Hugging "
       "Face's `rope_scaling`."},
      {"tp", "Tensor parallelism. Losses do not depend on it if mesh.tp is 1."},
      {"ddp",
       "Data parallelism. With one replica (mesh.dp is 1), param_dtype and "
       "comm_hook apply as with several, and the keys of buckets concern only "
       "gradients that are summed over mesh.tp.",
       {.key = "mesh.dp_shard", .values = {"1"}}},
      {"fsdp",
       "Fully sharded data parallelism.",
       {.key = "mesh.dp_shard", .values = {"1"}, .is_not = true}},
      {"comm", "Communication between ranks."},
      {"elastic",
       "Training in replica groups that may be lost and come back "
       "([elastic.md](elastic.md)). weftrun --replica-size starts them."},
      {"data",
       "The training and validation data. The last 1 % of a text and the last "
       "10 % of the images are the validation data."},
      {"train", "The length of the run, the batch size and the training loop."},
      {"lora",
       "LoRA: trains low-rank updates of the target Linear layers. All other "
       "parameters are frozen."},
      {"optimizer", "The optimizer."},
      {"lr_schedule", "The learning rate over the steps."},
      {"ema",
       "The exponential moving average (EMA) of the trained weights, kept in "
       "float32. `weft eval` and `weft generate` use it with `--weights ema`."},
      {"eval", "The validation loss."},
      {"checkpoint", "Saving and resuming."},
      {"integrity_check",
       "Detection of replicas that differ and of corrupted memory. Values that "
       "must be identical on several ranks (weights, optimizer state, EMA, "
       "computed buffers, random number generators, step, learning rate, data "
       "cursor) are hashed and compared periodically and before every save. If "
       "they differ, all ranks stop with exit code 5, nothing is saved, and "
       "the message names the tensor, the deviating rank and the steps. An "
       "error that is identical on all replicas, such as one in a gradient "
       "before its reduction, is not detected."},
      {"straggler_detection", "Detection of slow ranks."},
      {"log",
       "Outputs of a run in addition to `metrics.jsonl` and `report.html`."},
      {"trace",
       "A Chrome trace of some steps, `trace.json` in the run's folder, with "
       "ops, modules and collectives."},
      {"links",
       "The cost of messages by mesh dim, in place of the cost model's. 0 "
       "means the cost model's value. With `cost_model: measure` the resolved "
       "recipe of a run contains the measured values."},
      {"communication_budget",
       "Limits for `weft explain`, which exits with 1 if one is exceeded. "
       "Training ignores them."},
  };
  return table;
}

const Key* find_key(std::string_view path) {
  const auto keys = schema();
  const auto found = std::find_if(
      keys.begin(), keys.end(), [&](const Key& k) { return k.path == path; });
  return found == keys.end() ? nullptr : &*found;
}

bool is_option_map(const Key& key) {
  return std::holds_alternative<OptionField>(key.field);
}

std::span<const std::string_view> allowed_choices(const Key& key) {
  if (const auto* field = std::get_if<ChoiceRef (*)(Recipe&)>(&key.field)) {
    Recipe any;
    return (*field)(any).names();
  }
  return key.choices;
}

const Key* find_options(std::string_view path) {
  const Key* map = find_key(section_of(path));
  return map != nullptr && is_option_map(*map) ? map : nullptr;
}

void copy_value(const Key& key, const Recipe& from, Recipe& to) {
  auto& source = const_cast<Recipe&>(from); // only read
  std::visit(
      [&](auto field) {
        if constexpr (std::is_same_v<decltype(field(to)), ChoiceRef>) {
          field(to).set(field(source).index());
        } else {
          field(to) = field(source);
        }
      },
      key.field);
}

bool is_section(std::string_view path) {
  const auto all = sections();
  return std::any_of(
      all.begin(), all.end(), [&](const Section& s) { return s.name == path; });
}

std::string_view section_of(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? "" : path.substr(0, dot);
}

bool applies(const Key& key, const Recipe& recipe) {
  if (key.only.key.empty()) {
    return true;
  }
  const std::string value = value_of(recipe, key.only.key);
  const auto is_in = [&](const auto& values) {
    return std::find(values.begin(), values.end(), value) != values.end();
  };
  return is_in(key.only.values) ||
         (key.only.or_linked_in &&
          !is_in(allowed_choices(*find_key(key.only.key))));
}

namespace {

bool is_true(const Effect& effect, const Recipe& recipe) {
  if (effect.key.empty()) {
    return true;
  }
  const std::string value = value_of(recipe, effect.key);
  const bool is_in =
      std::ranges::find(effect.values, value) != effect.values.end();
  return is_in != effect.is_not;
}

const Effect& effect_of_section(const Key& key) {
  static const Effect kAlways;
  const auto all = sections();
  const auto found =
      std::ranges::find(all, section_of(key.path), &Section::name);
  return found == all.end() ? kAlways : found->effect;
}

} // namespace

bool has_effect(const Key& key, const Recipe& recipe) {
  return is_true(effect_of_section(key), recipe) && is_true(key.effect, recipe);
}

const Key* find_ineffective_key(const Recipe& recipe) {
  const Recipe defaults;
  for (const Key& key : schema()) {
    if (!has_effect(key, recipe) &&
        value_of(recipe, key.path) != value_of(defaults, key.path)) {
      return &key;
    }
  }
  return nullptr;
}

std::string why_without_effect(const Key& key, const Recipe& recipe) {
  const auto& section = effect_of_section(key);
  const auto& effect = is_true(section, recipe) ? key.effect : section;
  const auto value = value_of(recipe, effect.key);
  return effect.is_not ? fmt::format("{} is {}", effect.key, value)
                       : fmt::format(
                             "{} is {} and not {}",
                             effect.key,
                             value,
                             fmt::join(effect.values, " or "));
}

std::string effect_text(const Effect& effect) {
  return effect.key.empty()
             ? ""
             : fmt::format(
                   "{} if {} is {}.",
                   effect.is_not ? "It has no effect" : "It has an effect only",
                   effect.key,
                   fmt::join(effect.values, " or "));
}

} // namespace weft::config
