#include "dtensor/redistribute/plan_costs.h"

#include <algorithm>
#include <map>
#include <utility>

#include "dtensor/redistribute/redistribute_plan.h"
#include "dtensor/spec/region.h"

namespace weft::dtensor {
namespace {

using Dims = std::vector<int64_t>;

// The time to copy a byte into a common message and out of it, at 20 GB/s each.
constexpr double kPackUsPerByte = 1e-4;

int64_t largest_part(const DimShards& cuts, int64_t size) {
  for (const auto& cut : cuts) {
    // By the chunk rule, rank 0 has the largest part.
    size = cut.sizes.empty() ? shard_length(cut, size, 0)
                             : std::ranges::max(cut.sizes);
  }
  return size;
}

} // namespace

PlanCosts::PlanCosts(
    const mesh::DeviceMesh& mesh,
    c10::IntArrayRef sizes,
    int64_t element_size)
    : shape_(mesh.shape()),
      sizes_(sizes),
      element_size_(static_cast<double>(element_size)) {
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    links_.push_back(
        mesh.size(i) > 1 ? mesh::link_cost(mesh, i) : mesh::LinkCost());
  }
}

// A group is as slow as the slowest of its mesh dims.
mesh::LinkCost PlanCosts::link_of(const Dims& dims) const {
  mesh::LinkCost link = links_[dims[0]];
  for (const int64_t i : dims) {
    link.latency_us = std::max(link.latency_us, links_[i].latency_us);
    link.bandwidth_gb_s =
        std::min(link.bandwidth_gb_s, links_[i].bandwidth_gb_s);
  }
  return link;
}

double PlanCosts::min_us(
    const Placements& current,
    const Placements& next,
    StepKind kind,
    const Dims& dims) const {
  const bool may_be_a_name =
      kind == StepKind::kAllToAll && next[dims[0]].is_shard() &&
      current[dims[0]].is_shard(next[dims[0]].tensor_dim());
  return may_be_a_name ? 0 : step_us(kind, ranks_of(dims), 0, link_of(dims));
}

int64_t PlanCosts::ranks_of(const Dims& dims) const {
  int64_t ranks = 1;
  for (const int64_t i : dims) {
    ranks *= shape_[i];
  }
  return ranks;
}

// Returns the bytes of the largest part under the shards of mesh dims other
// than `dims`.
double PlanCosts::largest_bytes(const Placements& placements, const Dims& dims)
    const {
  double bytes = element_size_;
  for (size_t d = 0; d < sizes_.size(); ++d) {
    const auto cuts = dim_shards(placements, shape_, static_cast<int64_t>(d));
    bytes *= static_cast<double>(
        largest_part(split_cuts(cuts, dims).outer, sizes_[d]));
  }
  return bytes;
}

bool PlanCosts::is_same_sharding(const PlanStep& step) const {
  for (size_t d = 0; d < sizes_.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (dim_shards(step.from, shape_, dim) !=
        dim_shards(step.to, shape_, dim)) {
      return false;
    }
  }
  return true;
}

double PlanCosts::busiest_bytes(const PlanStep& step) const {
  std::vector<DimShards> before;
  std::vector<DimShards> after;
  std::vector<int64_t> left;
  for (size_t d = 0; d < sizes_.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    const auto split =
        split_cuts(dim_shards(step.from, shape_, dim), step.mesh_dims);
    before.push_back(split.inner);
    after.push_back(
        split_cuts(dim_shards(step.to, shape_, dim), step.mesh_dims).inner);
    left.push_back(largest_part(split.outer, sizes_[d]));
  }
  const ExchangeMap map(
      group_regions(before, left, shape_, step.mesh_dims),
      group_regions(after, left, shape_, step.mesh_dims));
  return element_size_ * static_cast<double>(map.busiest());
}

void PlanCosts::set_cost(PlanStep& step) const {
  if (step.kind == StepKind::kAllToAll && is_same_sharding(step)) {
    step.kind = StepKind::kLocal;
    step.us = step_us(step.kind, 1, 0, {});
    return;
  }
  const int64_t ranks = ranks_of(step.mesh_dims);
  const auto link = link_of(step.mesh_dims);
  if (step.kind == StepKind::kAllToAll || step.kind == StepKind::kLocal) {
    step.bytes =
        std::max(largest_bytes(step.from, {}), largest_bytes(step.to, {}));
  } else {
    step.bytes = largest_bytes(step.from, step.mesh_dims);
  }
  if (step.kind == StepKind::kAllToAll && step.mesh_dims.size() > 1) {
    // step_us() expects that a rank keeps one of `ranks` parts. busiest_bytes()
    // has only the bytes that are sent, so they are scaled.
    step.bytes = busiest_bytes(step) * static_cast<double>(ranks) /
                 static_cast<double>(ranks - 1);
  }
  step.us = step_us(step.kind, ranks, step.bytes, link);
  step.min_us = step_us(step.kind, ranks, 0, link);
}

double redistributed_bytes(
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::IntArrayRef global_sizes,
    int64_t element_size) {
  const auto plan = find_plan(
      fitted(from, global_sizes),
      fitted(to, global_sizes),
      global_sizes,
      element_size);
  double total = 0;
  for (const auto& step : plan->steps) {
    double ranks = 1;
    for (const int64_t i : step.mesh_dims) {
      ranks *= static_cast<double>(from.mesh().size(i));
    }
    total += received_bytes(step.kind, ranks, step.bytes);
  }
  return total;
}

bool is_cheaper_coalesced(
    const std::vector<std::shared_ptr<const RedistributePlan>>& plans) {
  // The communicating steps of all plans. Round i has the i-th message of each
  // plan.
  std::vector<std::vector<const PlanStep*>> rounds;
  for (const auto& plan : plans) {
    size_t round = 0;
    for (const auto& step : plan->steps) {
      if (step.kind != StepKind::kLocal) {
        rounds.resize(std::max(rounds.size(), round + 1));
        rounds[round++].push_back(&step);
      }
    }
  }
  double saved_us = 0;
  for (const auto& round : rounds) {
    struct Message {
      int64_t parts = 0;
      double bytes = 0;
      double min_us = 0;
    };
    std::map<std::pair<StepKind, Dims>, Message> messages;
    for (const auto* step : round) {
      auto& message = messages[{step->kind, step->mesh_dims}];
      message.parts += 1;
      message.bytes += step->bytes;
      message.min_us = step->min_us;
    }
    for (const auto& [key, message] : messages) {
      if (message.parts > 1) {
        saved_us += message.min_us * static_cast<double>(message.parts - 1) -
                    kPackUsPerByte * message.bytes;
      }
    }
  }
  return saved_us > 0;
}

} // namespace weft::dtensor
