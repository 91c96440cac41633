#include "cli/explain/measured.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/read_file.h"
#include "mesh/error/error.h"
#include "train/setup/load_recipe.h"

namespace weft::cli {
namespace {

using nlohmann::json;

bool is_decimal(char c) {
  return c >= '0' && c <= '9';
}

std::string key_of(
    const std::string& op,
    const std::string& mesh_dim,
    const std::string& name) {
  return fmt::format("{} {} {}", op, mesh_dim, name);
}

// Returns the mesh dim of a group in the flight recorder. Empty for "world",
// the name of every group that has all ranks.
std::string dim_of_group(const std::string& group) {
  const auto dim = group.substr(0, group.rfind('/'));
  return dim == "world" ? "" : dim;
}

void read_event(
    const json& event,
    MeasuredRun& run,
    std::set<std::string>& steps) {
  if (event.value("pid", -1) != 0 || event.value("ph", "") != "X") {
    return;
  }
  const auto category = event.value("cat", "");
  if (category == "step") {
    steps.insert(event.value("name", ""));
  }
  const auto args = event.value("args", json::object());
  if (!args.contains("group") || !args.contains("what")) {
    return;
  }
  // An example of a name is "all_gather model.norm.weight".
  const auto name = event.value("name", "");
  auto& call = run.calls[key_of(
      name.substr(0, name.find(' ')),
      dim_of_group(args.value("group", "")),
      without_numbers(args.value("what", "")))];
  ++call.count;
  const double us = event.value("dur", 0.0);
  call.us += us;
  call.min_us = std::min(call.min_us, us);
}

void read_trace(const std::string& path, MeasuredRun& run) {
  if (!std::filesystem::exists(path)) {
    return;
  }
  std::set<std::string> steps;
  try {
    const auto trace = base::parse_json(base::read_file(path).value_or(""));
    for (const auto& event : trace.at("traceEvents")) {
      read_event(event, run, steps);
    }
  } catch (const std::exception& error) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{} is not a trace that weft train wrote ({}). Delete it, or trace "
        "again with trace.steps=5",
        path,
        error.what()));
  }
  run.steps = static_cast<int64_t>(steps.size());
}

// Returns true if the key affects which collectives a step has, or their size.
bool affects_steps(std::string_view key) {
  for (const auto* section :
       {"mesh.", "model.", "tp.", "ddp.", "fsdp.", "lora."}) {
    if (key.starts_with(section)) {
      return true;
    }
  }
  return key == "device" || key == "train.dtype" ||
         key == "train.global_batch_size" || key == "train.micro_batch_size" ||
         key == "data.type" || key == "data.sequence_length" ||
         key.starts_with("train.activation_checkpoint");
}

void check_same_step(const std::string& folder, const config::Recipe& recipe) {
  const auto path = folder + "/recipe.yaml";
  if (!std::filesystem::is_regular_file(path)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{} has no recipe.yaml. Give the folder of a run, e.g. outputs/NAME",
        folder));
  }
  const auto run = train::load_stored_recipe(path, recipe.origins.models);
  for (const auto& key : config::differing_keys(run, recipe)) {
    if (affects_steps(key)) {
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "{} was measured with another recipe: {} is {} there and {} here. To "
          "explain the recipe of the run, use weft explain {} --measured {}",
          folder,
          key,
          config::value_of(run, key),
          config::value_of(recipe, key),
          path,
          folder));
    }
  }
}

void read_metrics(const std::string& path, MeasuredRun& run) {
  std::ifstream file(path, std::ios::binary);
  std::vector<double> all;
  for (std::string line; std::getline(file, line);) {
    const auto step = base::try_parse_json(line);
    if (step.is_object() && step.contains("comm_ms") &&
        step["comm_ms"].is_number()) {
      all.push_back(step["comm_ms"].get<double>());
    }
  }
  if (!all.empty()) {
    const auto middle = all.begin() + static_cast<int64_t>(all.size() / 2);
    std::ranges::nth_element(all, middle);
    run.comm_ms = *middle;
  }
}

} // namespace

const MeasuredRun::Call* MeasuredRun::find(
    const std::string& op,
    const std::string& mesh_dim,
    const std::string& name) const {
  auto found = calls.find(key_of(op, mesh_dim, name));
  if (found == calls.end()) {
    found = calls.find(key_of(op, "", name));
  }
  return found == calls.end() ? nullptr : &found->second;
}

MeasuredRun read_measured(
    const std::string& folder,
    const config::Recipe& recipe) {
  check_same_step(folder, recipe);
  MeasuredRun run;
  read_trace(folder + "/trace.json", run);
  read_metrics(folder + "/metrics.jsonl", run);
  if (run.steps == 0 && !run.comm_ms) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: neither trace.json nor metrics.jsonl contains a step. Run weft "
        "train first, with trace.steps=5 to time each collective",
        folder));
  }
  return run;
}

std::string without_numbers(const std::string& name) {
  std::string text;
  for (size_t i = 0; i < name.size();) {
    const bool starts = i > 0 && (name[i - 1] == '.' || name[i - 1] == ' ');
    size_t end = i;
    while (starts && end < name.size() && is_decimal(name[end])) {
      ++end;
    }
    if (end > i && end < name.size() && name[end] == '/') {
      // Skips the total of a number such as 3/8.
      for (++end; end < name.size() && is_decimal(name[end]);) {
        ++end;
      }
    }
    const bool is_number =
        end > i && (end == name.size() || name[end] == '.' || name[end] == ' ');
    if (is_number) {
      text += "*";
      i = end;
    } else {
      text += name[i++];
    }
  }
  return text;
}

} // namespace weft::cli
