#include "config/schema.h"

#include <algorithm>

#include "config/schema_keys.h"

namespace weft::recipes {
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
      {"mesh", "The grid of ranks; dp x dp_shard x tp is the number of ranks."},
      {"model", "What is trained."},
      {"model.rope_scaling",
       "Rotary embeddings for longer sequences, as Hugging Face's "
       "`rope_scaling`; without effect where rope_type is none."},
      {"tp", "Tensor parallelism; without effect where mesh.tp is 1."},
      {"ddp", "Data parallelism; without effect where mesh.dp is 1."},
      {"fsdp",
       "Fully sharded data parallelism, where mesh.dp_shard is above 1."},
      {"comm", "How ranks talk to each other."},
      {"data",
       "What it is trained on. Of text the last 1 % is held out, of images the "
       "last 10 %."},
      {"train", "How long, and on how much at once."},
      {"lora",
       "Adapters: of the Linears that are targets the weights are frozen and "
       "low-rank updates of them trained, as is nothing else."},
      {"optimizer", "How parameters are updated."},
      {"lr_schedule", "How the learning rate changes over the steps."},
      {"ema",
       "A running average of the weights that are trained, in float32 beside "
       "them: `weft eval` and `weft generate` take it with `--weights ema`."},
      {"eval", "Loss on what is held out."},
      {"checkpoint", "Saving and resuming."},
      {"integrity_check",
       "Watching over replicas and memory. What must be "
       "the same on several ranks (weights, the optimizer's state, the average "
       "of the weights, computed buffers, random numbers, step, learning rate, "
       "data cursor) is hashed and compared, also before every save; where it "
       "differs all ranks stop with exit code 5 and a message that names the "
       "tensor, the odd rank and the steps, and nothing is saved. Not seen is "
       "what goes wrong on all replicas alike, such as a gradient before it is "
       "reduced."},
      {"straggler_detection", "Watching over the speed of ranks."},
      {"log", "What a run writes beside `metrics.jsonl` and `report.html`."},
      {"trace",
       "A Chrome trace of some steps, `trace.json` in the run's folder: "
       "operators, modules, collectives."},
      {"links",
       "Prices of messages by mesh dim, instead of the cost model's. 0: the "
       "cost model's. The resolved recipe of a run with `cost_model: measure` "
       "has what was measured."},
      {"communication_budget",
       "What `weft explain` answers no to, with exit code 1. Training does not "
       "look at it."},
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

const Key* find_options(std::string_view path) {
  const Key* map = find_key(section_of(path));
  return map != nullptr && is_option_map(*map) ? map : nullptr;
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
         (key.only.or_linked_in && !is_in(find_key(key.only.key)->choices));
}

} // namespace weft::recipes
