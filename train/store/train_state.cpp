#include "train/store/train_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "checkpoint/files/error.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

namespace weft::train {
namespace {

using Json = nlohmann::ordered_json;

Json links_to_json(const config::LinksConfig& links) {
  return {
      {"dp_latency_us", links.dp_latency_us},
      {"dp_bandwidth_gb_s", links.dp_bandwidth_gb_s},
      {"tp_latency_us", links.tp_latency_us},
      {"tp_bandwidth_gb_s", links.tp_bandwidth_gb_s}};
}

// Returns 0 for all costs if the checkpoint has no links.
config::LinksConfig links_from_json(const Json& planner) {
  const auto links = planner.value("links", Json::object());
  return {
      .dp_latency_us = links.value("dp_latency_us", 0.0),
      .dp_bandwidth_gb_s = links.value("dp_bandwidth_gb_s", 0.0),
      .tp_latency_us = links.value("tp_latency_us", 0.0),
      .tp_bandwidth_gb_s = links.value("tp_bandwidth_gb_s", 0.0)};
}

template <class Read>
auto parse(const std::string& text, const std::string& source, Read read) {
  try {
    return read(base::parse_json<Json>(text));
  } catch (const nlohmann::json::exception& error) {
    mesh::throw_error<checkpoint::CheckpointError>(fmt::format(
        "{}: the checkpoint was not written by weft train: {}. Its tensors can "
        "be imported, but the run cannot be resumed.",
        source,
        error.what()));
  }
}

template <class E>
E parse_choice(const std::string& name, const std::string& source) {
  const auto choice = config::choice_of<E>(name);
  if (!choice) {
    mesh::throw_error<checkpoint::CheckpointError>(fmt::format(
        "{}: the checkpoint has \"{}\" where {} is expected. A later version "
        "of Weft may have written it",
        source,
        name,
        fmt::join(config::kChoiceNames<E>, " or ")));
  }
  return *choice;
}

} // namespace

std::string to_json(const TrainState& state, const config::Recipe& recipe) {
  const auto& schedule = recipe.lr_schedule;
  Json object{
      {"step", state.step},
      {"tokens", state.tokens},
      {"rng", {{"seed", recipe.seed}, {"step", state.step}}},
      {"data",
       {{"next_sample", state.next_sample},
        {"seed", recipe.seed},
        {"sequence_length", recipe.data.sequence_length},
        {"fingerprint", state.data_fingerprint}}},
      {"lr_schedule",
       {{"type", to_string(schedule.type)},
        {"step", state.step},
        {"total_steps", recipe.train.steps},
        {"warmup_steps", schedule.warmup_steps},
        {"peak_lr", recipe.optimizer.lr},
        {"min_ratio", schedule.min_ratio}}}};
  if (state.skipped_in_a_row > 0) {
    object["skipped_in_a_row"] = state.skipped_in_a_row;
  }
  return base::strict_json_text(object);
}

std::string to_json(const RunLayout& layout) {
  return base::strict_json_text(Json{
      {"mesh", layout.mesh},
      {"products", to_string(layout.products)},
      {"planner",
       {{"cost_model", to_string(layout.cost_model)},
        {"links", links_to_json(layout.links)}}},
      {"buckets", layout.buckets},
      {"recipe", layout.recipe},
      {"metrics_line", layout.metrics_line}});
}

TrainState parse_train_state(
    const std::string& json,
    const std::string& source) {
  return parse(json, source, [](const Json& object) {
    return TrainState{
        .step = object.at("step"),
        .tokens = object.at("tokens"),
        .next_sample = object.at("data").at("next_sample"),
        .data_fingerprint = object.at("data").at("fingerprint"),
        .skipped_in_a_row = object.value("skipped_in_a_row", int64_t{0})};
  });
}

RunLayout parse_run_layout(const std::string& json, const std::string& source) {
  return parse(json, source, [&](const Json& object) {
    return RunLayout{
        .mesh = object.at("mesh"),
        .buckets = object.at("buckets"),
        // A checkpoint without this key was trained with libtorch.
        .products = parse_choice<config::Products>(
            object.value("products", "libtorch"), source),
        .cost_model = parse_choice<config::CostModel>(
            object.at("planner").at("cost_model"), source),
        .links = links_from_json(object.at("planner")),
        .recipe = object.at("recipe"),
        .metrics_line = object.at("metrics_line")};
  });
}

std::vector<BucketNames> gather_bucket_names(
    mesh::Communicator& tp,
    const BucketNames& own) {
  std::vector<BucketNames> result;
  if (!own.empty()) {
    for (const auto& text : mesh::all_gather_text(
             tp, base::strict_json_text(Json(own)), "bucket layout")) {
      result.push_back(base::parse_json<Json>(text));
    }
  }
  return result;
}

} // namespace weft::train
