#include "train/store/link_costs.h"

#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "mesh/measure_links.h"

namespace weft::train {
namespace {

struct Link {
  std::string_view mesh_dim;
  double& latency_us;
  double& bandwidth_gb_s;

  void set(const mesh::LinkCost& cost) const {
    latency_us = cost.latency_us;
    bandwidth_gb_s = cost.bandwidth_gb_s;
  }
};

std::array<Link, 2> links_of(config::LinksConfig& links) {
  return {
      Link{"dp", links.dp_latency_us, links.dp_bandwidth_gb_s},
      Link{"tp", links.tp_latency_us, links.tp_bandwidth_gb_s}};
}

} // namespace

std::string links_text(const config::Recipe& recipe) {
  std::string text;
  for (const auto* mesh_dim : {"dp", "tp"}) {
    if (const auto cost = configured_link_cost(recipe, mesh_dim)) {
      text += fmt::format(
          "{}{} {:.3g} us, {:.3g} GB/s",
          text.empty() ? "links: " : "; ",
          mesh_dim,
          cost->latency_us,
          cost->bandwidth_gb_s);
    }
  }
  return text;
}

void adopt_link_costs(config::Recipe& recipe, config::LinksConfig earlier) {
  const auto sources = links_of(earlier);
  const auto links = links_of(recipe.links);
  for (size_t i = 0; i < links.size(); ++i) {
    if (!configured_link_cost(recipe, links[i].mesh_dim)) {
      links[i].set({sources[i].latency_us, sources[i].bandwidth_gb_s});
    }
  }
}

std::optional<mesh::LinkCost> configured_link_cost(
    const config::Recipe& recipe,
    std::string_view mesh_dim) {
  const auto& links = recipe.links;
  const mesh::LinkCost cost =
      mesh_dim != "tp"
          ? mesh::LinkCost{links.dp_latency_us, links.dp_bandwidth_gb_s}
          : mesh::LinkCost{links.tp_latency_us, links.tp_bandwidth_gb_s};
  return cost.bandwidth_gb_s > 0 ? std::optional(cost) : std::nullopt;
}

void resolve_link_costs(config::Recipe& recipe, const mesh::DeviceMesh& mesh) {
  std::vector<Link> open;
  for (const auto& link : links_of(recipe.links)) {
    // A mesh dim of size 1 has no link.
    if (mesh.size(link.mesh_dim) > 1 &&
        !configured_link_cost(recipe, link.mesh_dim)) {
      open.push_back(link);
    }
  }
  if (recipe.cost_model == config::CostModel::kMeasure && !open.empty()) {
    const auto measured = mesh::measure_link_costs(mesh);
    for (const auto& link : open) {
      link.set(measured[mesh.mesh_dim(link.mesh_dim)]);
    }
  }
  for (const auto& name : mesh.mesh_dim_names()) {
    if (const auto cost = configured_link_cost(recipe, name)) {
      mesh::set_link_cost(mesh, name, *cost);
    }
  }
}

} // namespace weft::train
