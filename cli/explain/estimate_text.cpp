#include "cli/explain/estimate_text.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "train/setup/loss.h"

namespace weft::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string bytes_text(double bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes *= 1e-3;
    ++unit;
  }
  return unit == 0 || bytes >= 99.95
             ? fmt::format("{:.0f} {}", bytes, kUnits[unit])
             : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string bytes_text(int64_t bytes) {
  return bytes_text(static_cast<double>(bytes));
}

std::string time_text(double us) {
  if (us < 1e3) {
    return fmt::format("{:.0f} us", us);
  }
  return us < 1e6 ? fmt::format("{:.1f} ms", us * 1e-3)
                  : fmt::format("{:.2f} s", us * 1e-6);
}

// Formats a count, e.g. as "70.55 G".
std::string count_text(int64_t count) {
  const auto value = static_cast<double>(count);
  return value < 1e6   ? fmt::format("{}", count)
         : value < 1e9 ? fmt::format("{:.2f} M", value * 1e-6)
                       : fmt::format("{:.2f} G", value * 1e-9);
}

class Table {
 public:
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  std::string text() const {
    std::vector<size_t> widths;
    for (const auto& row : rows_) {
      widths.resize(std::max(widths.size(), row.size()));
      for (size_t i = 0; i < row.size(); ++i) {
        widths[i] = std::max(widths[i], row[i].size());
      }
    }
    std::string all;
    for (const auto& row : rows_) {
      std::string line = " ";
      for (size_t i = 0; i < row.size(); ++i) {
        line += fmt::format(" {:<{}} ", row[i], widths[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      all += line + "\n";
    }
    return all;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string header(const StepEstimate& estimate, const config::Recipe& recipe) {
  return fmt::format(
      "{}: {} parameters, {} on {} ranks ({}), a step of {} "
      "in {} micro-batch{}\n",
      recipe.name,
      count_text(estimate.parameter_count),
      recipe.train.dtype,
      estimate.world_size,
      recipe.mesh.to_string(),
      train::describe_batch(recipe),
      estimate.micro_batches,
      estimate.micro_batches == 1 ? "" : "es");
}

std::string memory_text(const MemoryEstimate& memory) {
  Table table;
  const auto add = [&](const char* what, int64_t bytes, const char* more) {
    table.add({what, bytes_text(bytes), more});
  };
  const bool is_sharded = memory.unsharded > 0;
  add("parameters", memory.parameters, is_sharded ? "this rank's part" : "");
  add("gradients",
      memory.gradients,
      is_sharded ? "this rank's part" : "in their buckets");
  add("optimizer state", memory.optimizer, "");
  add("buffers", memory.buffers, "");
  if (is_sharded) {
    add("unsharded",
        memory.unsharded,
        "other ranks' parts of the units that are gathered at once");
    add("messages",
        memory.reduction_buffers,
        "what is gathered, and gradients on their way");
  }
  table.add(
      {"activations",
       bytes_text(memory.peak_activations),
       fmt::format(
           "at the peak; forward keeps {}",
           bytes_text(memory.saved_activations))});
  add("together", memory.total(), "");
  return "\nmemory of a rank\n" + table.text();
}

std::string moved_text(const CollectiveGroup& group) {
  return group.from.empty() ? ""
                            : fmt::format("{} -> {}", group.from, group.to);
}

std::string each_bytes(const CollectiveGroup& group) {
  const bool even = group.bytes == group.count * group.max_bytes;
  return (even ? "" : "<= ") + bytes_text(group.max_bytes);
}

// Returns "x1.8" if the measured time is 1.8 times the estimate, and "/2.0" if
// it is half of the estimate. Empty if one of them is unknown.
std::string off_text(double estimated, double measured) {
  if (estimated <= 0 || measured <= 0) {
    return "";
  }
  const double ratio = measured / estimated;
  return ratio >= 1 ? fmt::format("x{:.1f}", ratio)
                    : fmt::format("/{:.1f}", 1 / ratio);
}

std::vector<std::string> collective_row(
    const CollectiveGroup& group,
    const MeasuredRun* measured) {
  std::vector<std::string> row = {
      group.phase,
      fmt::format("{} x", group.count),
      group.op,
      group.mesh_dim,
      each_bytes(group),
      time_text(group.estimated_us / static_cast<double>(group.count))};
  if (measured && measured->steps > 0) {
    const auto* call = measured->find(group.op, group.mesh_dim, group.name);
    row.push_back(call ? time_text(call->mean_us()) : "-");
    row.push_back(call ? time_text(call->min_us) : "-");
    row.push_back(
        call ? off_text(
                   group.estimated_us / static_cast<double>(group.count),
                   call->mean_us())
             : "");
  }
  row.push_back(group.name);
  row.push_back(moved_text(group));
  row.emplace_back(group.is_implicit ? "implicit" : "");
  return row;
}

std::string collectives_text(
    const StepEstimate& estimate,
    const MeasuredRun* measured) {
  Table table;
  const bool beside = measured && measured->steps > 0;
  std::vector<std::string> titles = {"", "", "", "", "bytes each", "time each"};
  if (beside) {
    titles.insert(titles.end(), {"measured", "fastest", "off"});
  }
  titles.insert(titles.end(), {"for", "moves"});
  table.add(std::move(titles));
  std::string cheaper;
  for (const auto& group : estimate.collectives) {
    table.add(collective_row(group, measured));
    if (!group.cheaper.empty()) {
      cheaper += fmt::format("  {}: {}\n", group.name, group.cheaper);
    }
  }
  return "\ncollectives of a step on a rank\n" + table.text() +
         (cheaper.empty() ? "" : "\ncheaper placements\n" + cheaper);
}

std::string links_text(const StepEstimate& estimate) {
  std::string text = "\nlinks:";
  for (const auto& link : estimate.links) {
    text += fmt::format(
        " {} of {} {} ({:g} us, {:g} GB/s)",
        link.mesh_dim,
        link.ranks,
        link.between_hosts ? "between hosts" : "inside a host",
        link.cost.latency_us,
        link.cost.bandwidth_gb_s);
    text += &link == &estimate.links.back() ? "\n" : ",";
  }
  return text;
}

std::string sum_text(const StepEstimate& estimate) {
  std::string text = fmt::format(
      "\na step: {} collectives, {} implicit, {}, {} if none overlaps with "
      "compute",
      estimate.collective_count(),
      estimate.implicit_count(),
      bytes_text(estimate.bytes()),
      time_text(estimate.estimated_us()));
  for (const auto& link : estimate.links) {
    double us = 0;
    for (const auto& group : estimate.collectives) {
      us += group.mesh_dim == link.mesh_dim ? group.estimated_us : 0;
    }
    text += fmt::format(
        "{}{} {}",
        &link == &estimate.links.front() ? ": " : ", ",
        link.mesh_dim,
        time_text(us));
  }
  return text + "\n";
}

// The sums of the measured times of a step's collectives.
struct MeasuredStep {
  double mean_us = 0;
  /// The sum if each collective took as long as the fastest of its kind.
  double min_us = 0;
};

std::optional<MeasuredStep> measured_step(
    const StepEstimate& estimate,
    const MeasuredRun& measured) {
  if (measured.steps == 0) {
    return std::nullopt;
  }
  MeasuredStep step;
  for (const auto& group : estimate.collectives) {
    const auto count = static_cast<double>(group.count);
    if (const auto* call =
            measured.find(group.op, group.mesh_dim, group.name)) {
      step.mean_us += count * call->mean_us();
      step.min_us += count * call->min_us;
    }
  }
  return step;
}

std::string measured_text(
    const StepEstimate& estimate,
    const MeasuredRun& measured) {
  std::string text;
  const double estimated = estimate.estimated_us();
  if (const auto step = measured_step(estimate, measured)) {
    text += fmt::format(
        "measured in {} traced steps, waiting for late ranks included: {} a "
        "step, {} the estimate; with the fastest of each: {}, {}\n",
        measured.steps,
        time_text(step->mean_us),
        off_text(estimated, step->mean_us),
        time_text(step->min_us),
        off_text(estimated, step->min_us));
  }
  if (measured.comm_ms) {
    text += fmt::format(
        "measured, the host's wait for collectives: {} a step (median), {} the "
        "estimate\n",
        time_text(*measured.comm_ms * 1e3),
        off_text(estimated, *measured.comm_ms * 1e3));
  }
  return text;
}

Json group_json(const CollectiveGroup& group, const MeasuredRun* measured) {
  Json json{
      {"phase", group.phase},
      {"op", group.op},
      {"mesh_dim", group.mesh_dim},
      {"ranks", group.ranks},
      {"name", group.name},
      {"implicit", group.is_implicit},
      {"from", group.from},
      {"to", group.to},
      {"cheaper", group.cheaper},
      {"count", group.count},
      {"bytes", group.bytes},
      {"most_bytes", group.max_bytes},
      {"estimated_us", group.estimated_us}};
  if (measured) {
    const auto* call = measured->find(group.op, group.mesh_dim, group.name);
    const auto count = static_cast<double>(group.count);
    json["measured_us"] = call ? Json(call->mean_us() * count) : Json(nullptr);
    json["measured_fastest_us"] =
        call ? Json(call->min_us * count) : Json(nullptr);
  }
  return json;
}

Json links_json(const StepEstimate& estimate) {
  Json links = Json::array();
  for (const auto& link : estimate.links) {
    links.push_back(
        {{"mesh_dim", link.mesh_dim},
         {"ranks", link.ranks},
         {"between_hosts", link.between_hosts},
         {"latency_us", link.cost.latency_us},
         {"bandwidth_gb_s", link.cost.bandwidth_gb_s}});
  }
  return links;
}

} // namespace

std::string to_text(
    const StepEstimate& estimate,
    const EstimateContext& context) {
  std::string text = header(estimate, context.recipe) +
                     memory_text(estimate.memory) +
                     collectives_text(estimate, context.measured) +
                     links_text(estimate) + sum_text(estimate);
  if (context.measured) {
    text += measured_text(estimate, *context.measured);
  }
  for (const auto& over : context.over_budget) {
    text += "over budget: " + over + "\n";
  }
  for (const auto& note : context.notes) {
    text += "note: " + note + "\n";
  }
  return text;
}

std::string to_json(
    const StepEstimate& estimate,
    const EstimateContext& context) {
  const auto& recipe = context.recipe;
  const auto& memory = estimate.memory;
  Json json{
      {"recipe", recipe.name},
      {"world_size", estimate.world_size},
      {"mesh",
       {{"dp", recipe.mesh.dp},
        {"dp_shard", recipe.mesh.dp_shard},
        {"tp", recipe.mesh.tp}}},
      {"parameters", estimate.parameter_count},
      {"tokens_per_step", train::targets_per_step(recipe)},
      {"micro_batches", estimate.micro_batches},
      {"memory_bytes",
       {{"parameters", memory.parameters},
        {"gradients", memory.gradients},
        {"optimizer", memory.optimizer},
        {"buffers", memory.buffers},
        {"unsharded", memory.unsharded},
        {"reduction_buffers", memory.reduction_buffers},
        {"activations_saved", memory.saved_activations},
        {"activations_peak", memory.peak_activations},
        {"total", memory.total()}}},
      {"links", links_json(estimate)},
      {"collectives", Json::array()},
      {"step",
       {{"collectives", estimate.collective_count()},
        {"implicit", estimate.implicit_count()},
        {"bytes", estimate.bytes()},
        {"estimated_us", estimate.estimated_us()}}},
      {"over_budget", context.over_budget},
      {"notes", context.notes}};
  for (const auto& group : estimate.collectives) {
    json["collectives"].push_back(group_json(group, context.measured));
  }
  if (const auto* measured = context.measured) {
    const auto step = measured_step(estimate, *measured);
    json["measured"] = {
        {"traced_steps", measured->steps},
        {"collectives_us", step ? Json(step->mean_us) : Json(nullptr)},
        {"fastest_us", step ? Json(step->min_us) : Json(nullptr)},
        {"wait_us",
         measured->comm_ms ? Json(*measured->comm_ms * 1e3) : Json(nullptr)}};
  }
  return base::json_text(json);
}

} // namespace weft::cli
