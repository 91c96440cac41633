#include "dtensor/debug/explain.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace weft::dtensor {
namespace {

using mesh::Collective;

// Returns the collective of a Communicator method. The name of a variant starts
// with that of its collective: "all_gather_uneven" is an all_gather.
std::optional<Collective> kind_of(std::string_view op) {
  constexpr std::array kKinds = {
      Collective::kAllReduce,
      Collective::kAllGather,
      Collective::kReduceScatter,
      Collective::kAllToAll,
      Collective::kBroadcast};
  for (const auto kind : kKinds) {
    if (op.starts_with(mesh::to_string(kind))) {
      return kind;
    }
  }
  return std::nullopt;
}

std::string time_text(double us) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), us < 100 ? "%.1f us" : "%.0f us", us);
  return text.data();
}

std::string line_of(const ExplainedCollective& entry) {
  auto text = c10::str(
      entry.op,
      " over ",
      entry.mesh_dim,
      " of ",
      entry.ranks,
      ": ",
      entry.bytes,
      " bytes, ",
      time_text(entry.estimated_us),
      entry.is_implicit ? ", implicit" : ", explicit",
      entry.is_backward ? ", backward" : "",
      ", by ",
      entry.name.empty() ? "?" : entry.name);
  if (!entry.module.empty() && !entry.name.starts_with(entry.module)) {
    text += " in " + entry.module;
  }
  if (!entry.tensor.empty()) {
    text += c10::str(": ", entry.tensor, " ", entry.from, " -> ", entry.to);
  }
  if (!entry.cheaper.empty()) {
    text += "; cheaper: " + entry.cheaper;
  }
  return text + "\n";
}

} // namespace

double estimated_us(
    std::string_view op,
    int64_t ranks,
    int64_t bytes,
    const mesh::LinkCost& link) {
  // A call without a Collective, such as a barrier, costs as much as an
  // all_reduce of 0 bytes.
  const auto kind = kind_of(op);
  return mesh::collective_us(
      kind.value_or(Collective::kAllReduce),
      ranks,
      kind ? static_cast<double>(bytes) : 0,
      link);
}

int64_t Explanation::bytes() const {
  int64_t sum = 0;
  for (const auto& entry : entries) {
    sum += entry.bytes;
  }
  return sum;
}

double Explanation::estimated_us() const {
  double sum = 0;
  for (const auto& entry : entries) {
    sum += entry.estimated_us;
  }
  return sum;
}

int64_t Explanation::implicit_count() const {
  return std::ranges::count_if(
      entries, [](const auto& entry) { return entry.is_implicit; });
}

std::string Explanation::to_string() const {
  std::string text;
  for (const auto& entry : entries) {
    text += line_of(entry);
  }
  return text + c10::str(
                    entries.size(),
                    " collectives, ",
                    implicit_count(),
                    " of them implicit, ",
                    bytes(),
                    " bytes, ",
                    time_text(estimated_us()),
                    "\n");
}

std::string Explanation::to_json() const {
  using Json = nlohmann::ordered_json;
  Json json{
      {"collectives", Json::array()},
      {"bytes", bytes()},
      {"estimated_us", estimated_us()},
      {"implicit", implicit_count()}};
  for (const auto& entry : entries) {
    json["collectives"].push_back(
        {{"op", entry.op},
         {"mesh_dim", entry.mesh_dim},
         {"ranks", entry.ranks},
         {"bytes", entry.bytes},
         {"estimated_us", entry.estimated_us},
         {"implicit", entry.is_implicit},
         {"pass", entry.is_backward ? "backward" : "forward"},
         {"name", entry.name},
         {"module", entry.module},
         {"tensor", entry.tensor},
         {"from", entry.from},
         {"to", entry.to},
         {"cheaper", entry.cheaper}});
  }
  return base::json_text(json);
}

Explanation explain(
    const mesh::DeviceMesh& mesh,
    const std::function<void()>& program,
    const ExplainOptions& options) {
  CommDebugMode mode(
      {.mesh = mesh, .module = options.module, .find_cheaper = true});
  program();
  Explanation explanation;
  for (auto& record : mode.records()) {
    ExplainedCollective entry{std::move(record)};
    // A group that is not a dim of `mesh`, e.g. that of a flattened mesh, gets
    // the largest latency and the smallest bandwidth of all dims.
    mesh::LinkCost link{.latency_us = 0, .bandwidth_gb_s = 1e9};
    for (const auto& name : mesh.mesh_dim_names()) {
      if (name == entry.mesh_dim || !mesh.has_mesh_dim(entry.mesh_dim)) {
        const auto cost = options.link_cost
                              ? options.link_cost(name)
                              : link_cost(mesh, mesh.mesh_dim(name));
        link.latency_us = std::max(link.latency_us, cost.latency_us);
        link.bandwidth_gb_s =
            std::min(link.bandwidth_gb_s, cost.bandwidth_gb_s);
      }
    }
    entry.estimated_us =
        dtensor::estimated_us(entry.op, entry.ranks, entry.bytes, link);
    explanation.entries.push_back(std::move(entry));
  }
  return explanation;
}

} // namespace weft::dtensor
