#include "recipes/explain/measured.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "mesh/error.h"

namespace weft::recipes {
namespace {

using nlohmann::json;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string key_of(
    const std::string& op,
    const std::string& mesh_dim,
    const std::string& name) {
  return fmt::format("{} {} {}", op, mesh_dim, name);
}

// Groups of all ranks are "world" in the ledger, whatever dim they are.
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
  // "all_gather model.norm.weight".
  const auto name = event.value("name", "");
  auto& call = run.calls[key_of(
      name.substr(0, name.find(' ')),
      dim_of_group(args.value("group", "")),
      without_numbers(args.value("what", "")))];
  ++call.count;
  const double us = event.value("dur", 0.0);
  call.us += us;
  call.least_us = std::min(call.least_us, us);
}

bool read_trace(const std::string& path, MeasuredRun& run) {
  std::ifstream file(path, std::ios::binary);
  const auto trace = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!trace.is_object() || !trace.contains("traceEvents") ||
      !trace["traceEvents"].is_array()) {
    return false;
  }
  std::set<std::string> steps;
  for (const auto& event : trace["traceEvents"]) {
    if (event.is_object()) {
      read_event(event, run, steps);
    }
  }
  run.steps = static_cast<int64_t>(steps.size());
  return true;
}

bool read_metrics(const std::string& path, MeasuredRun& run) {
  std::ifstream file(path, std::ios::binary);
  std::vector<double> all;
  for (std::string line; std::getline(file, line);) {
    const auto step = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (step.is_object() && step.contains("comm_ms") &&
        step["comm_ms"].is_number()) {
      all.push_back(step["comm_ms"].get<double>());
    }
  }
  if (all.empty()) {
    return false;
  }
  const auto middle = all.begin() + static_cast<int64_t>(all.size() / 2);
  std::ranges::nth_element(all, middle);
  run.comm_ms = *middle;
  return true;
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

MeasuredRun read_measured(const std::string& folder) {
  MeasuredRun run;
  const bool has_trace = read_trace(folder + "/trace.json", run);
  const bool has_metrics = read_metrics(folder + "/metrics.jsonl", run);
  if (!has_trace && !has_metrics) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: holds neither a trace.json nor a metrics.jsonl that can be read. "
        "Give the folder of a run, outputs/NAME; run it with trace.steps=5 for "
        "times of each collective",
        folder));
  }
  return run;
}

std::string without_numbers(const std::string& name) {
  std::string text;
  for (size_t i = 0; i < name.size();) {
    const bool starts = i > 0 && (name[i - 1] == '.' || name[i - 1] == ' ');
    size_t end = i;
    while (starts && end < name.size() && is_digit(name[end])) {
      ++end;
    }
    if (end > i && end < name.size() && name[end] == '/') { // of how many
      for (++end; end < name.size() && is_digit(name[end]);) {
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

} // namespace weft::recipes
