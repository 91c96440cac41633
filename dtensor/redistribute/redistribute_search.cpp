#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "dtensor/redistribute/plan_costs.h"
#include "dtensor/redistribute/redistribute.h"
#include "dtensor/redistribute/redistribute_plan.h"
#include "dtensor/spec/region.h"

// Note [Shortest plans]
// ~~~~~~~~~~~~~~~~~~~~~
// A state has one placement per mesh dim, from a short list: the mesh dim's
// placements before and after, Replicate, and shards of the tensor dims that
// other mesh dims shard. An edge changes the placement of one mesh dim, or of
// several in one collective over all their ranks. The latter are gathers,
// reductions of one kind, and exchanges (see Note [Exchanges]), which lead to
// any placements without Partial. No edge changes the meaning of another mesh
// dim's shard: the shards that an edge removes and adds are the last ones of
// their tensor dim, see Note [Order of shards]. No reduction runs before one of
// an inner mesh dim with which it does not commute. Dijkstra's algorithm finds
// the cheapest path. Of equal ones it takes the first in the order of mesh dims
// and placements. Costs come from Note [Redistribution cost model].
//
// A group over several mesh dims has the ranks that differ in these dims only.
// All of them run the step that needs the group, and no other ranks are needed
// to create it, so it is created when it is first needed. Neither plans nor the
// bits of a sum depend on whether it already exists.
//
// If there are too many states (many mesh dims), the steps of
// Note [Steps of a redistribution] are taken.

namespace weft::dtensor {
namespace {

// Exchanges over more ranks are not considered, because computing the cost of
// one compares all pairs of ranks.
constexpr int64_t kMaxExchangeRanks = 64;
constexpr int64_t kMaxStates = 4096;

using Dims = std::vector<int64_t>;

bool is_prefix(const DimShards& cuts, const DimShards& of) {
  return cuts.size() <= of.size() &&
         std::equal(cuts.begin(), cuts.end(), of.begin());
}

class Search {
 public:
  Search(
      const DTensorSpec& from,
      const DTensorSpec& to,
      c10::IntArrayRef sizes,
      int64_t element_size)
      : mesh_(from.mesh()),
        shape_(mesh_.shape()),
        sizes_(sizes),
        prices_(mesh_, sizes, element_size),
        from_(from.placements()),
        to_(to.placements()) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      from_cuts_.push_back(dim_shards(from_, shape_, dim));
      to_cuts_.push_back(dim_shards(to_, shape_, dim));
    }
    for (int64_t i = 0; i < from.mesh_ndim(); ++i) {
      if (shape_[i] > 1) {
        moving_.push_back(i);
      } else {
        // On a mesh dim of one rank, all placements mean the same.
        from_[i] = to_[i];
      }
    }
    list_candidates();
    list_groups();
  }

  RedistributePlan plan() {
    if (states() > kMaxStates) {
      return plain_plan();
    }
    nodes_.resize(states());
    const int64_t first = state_of(from_);
    last_ = state_of(to_);
    nodes_[first].us = 0;
    for (int64_t state = first; state != last_; state = cheapest_open()) {
      expand(state);
    }
    RedistributePlan plan;
    plan.us = nodes_[last_].us;
    for (int64_t state = last_; state != first; state = nodes_[state].parent) {
      plan.steps.push_back(*nodes_[state].step);
    }
    std::ranges::reverse(plan.steps);
    return plan;
  }

 private:
  struct Node {
    double us = std::numeric_limits<double>::infinity();
    bool is_closed = false;
    int64_t parent = -1;
    std::optional<PlanStep> step;
  };

  void list_candidates() {
    std::vector<Placement> cuts;
    for (const auto* list : {&from_, &to_}) {
      for (const auto& placement : *list) {
        const auto cut = Shard(placement.tensor_dim());
        if (placement.is_shard() &&
            std::ranges::find(cuts, cut) == cuts.end()) {
          cuts.push_back(cut);
        }
      }
    }
    for (size_t i = 0; i < from_.size(); ++i) {
      std::vector<Placement> list;
      const auto add = [&](const Placement& placement) {
        if (std::ranges::find(list, placement) == list.end()) {
          list.push_back(placement);
        }
      };
      add(to_[i]);
      add(from_[i]);
      if (shape_[i] > 1 && from_ != to_) {
        add(Replicate());
        for (const auto& cut : cuts) {
          if (moving_.size() > 1) {
            add(cut);
            // This shards the dim after the later mesh dims have sharded it.
            add(StridedShard(cut.tensor_dim(), later_parts(i, cut)));
          }
        }
      }
      candidates_.push_back(std::move(list));
    }
  }

  // Returns into how many parts the mesh dims after `i` shard a tensor dim,
  // before or after the redistribution.
  int64_t later_parts(size_t i, const Placement& cut) const {
    int64_t parts = 1;
    for (size_t j = i + 1; j < from_.size(); ++j) {
      if (from_[j].is_shard(cut.tensor_dim()) ||
          to_[j].is_shard(cut.tensor_dim())) {
        parts *= shape_[j];
      }
    }
    return parts;
  }

  void list_groups() {
    for (uint64_t bits = 1; bits < (uint64_t{1} << moving_.size()); ++bits) {
      Dims dims;
      for (size_t k = 0; k < moving_.size(); ++k) {
        if ((bits >> k) & 1) {
          dims.push_back(moving_[k]);
        }
      }
      if (dims.size() > 1) {
        groups_.push_back(std::move(dims));
      }
    }
  }

  int64_t states() const {
    int64_t count = 1;
    for (const auto& list : candidates_) {
      count =
          std::min(count * static_cast<int64_t>(list.size()), kMaxStates + 1);
    }
    return count;
  }

  int64_t state_of(const Placements& placements) const {
    int64_t state = 0;
    for (size_t i = 0; i < placements.size(); ++i) {
      const auto& list = candidates_[i];
      state = state * static_cast<int64_t>(list.size()) +
              (std::ranges::find(list, placements[i]) - list.begin());
    }
    return state;
  }

  Placements placements_of(int64_t state) const {
    Placements placements(candidates_.size());
    for (size_t i = candidates_.size(); i-- > 0;) {
      const auto count = static_cast<int64_t>(candidates_[i].size());
      placements[i] = candidates_[i][state % count];
      state /= count;
    }
    return placements;
  }

  int64_t cheapest_open() const {
    int64_t best = -1;
    for (size_t s = 0; s < nodes_.size(); ++s) {
      if (!nodes_[s].is_closed &&
          (best < 0 || nodes_[s].us < nodes_[best].us)) {
        best = static_cast<int64_t>(s);
      }
    }
    TORCH_INTERNAL_ASSERT(
        best >= 0 && nodes_[best].us < std::numeric_limits<double>::infinity(),
        "no steps lead from ",
        to_string(from_),
        " to ",
        to_string(to_));
    return best;
  }

  void expand(int64_t state) {
    nodes_[state].is_closed = true;
    const auto current = placements_of(state);
    for (const int64_t i : moving_) {
      for (const auto& placement : candidates_[i]) {
        if (placement != current[i] && !is_impossible(current[i], placement)) {
          auto next = current;
          next[i] = placement;
          try_step(state, current, next, step_kind(current[i], placement), {i});
        }
      }
    }
    for (const auto& dims : groups_) {
      try_group(state, current, dims);
    }
  }

  // Tries the steps that change all of `dims` in one collective.
  void try_group(int64_t state, const Placements& current, const Dims& dims) {
    const auto all = [&](const Placements& placements, auto&& holds) {
      return std::ranges::all_of(
          dims, [&](int64_t i) { return holds(placements[i]); });
    };
    const auto is_cut = [](const Placement& p) { return p.is_shard(); };
    const auto is_pending = [&](const Placement& p) {
      return p.is_partial() && p == current[dims[0]];
    };
    auto whole = current;
    auto target = current;
    for (const int64_t i : dims) {
      whole[i] = Replicate();
      target[i] = to_[i].is_partial() ? Replicate() : to_[i];
    }
    if (all(current, is_pending)) {
      try_step(state, current, whole, StepKind::kAllReduce, dims);
      if (all(target, is_cut)) {
        try_step(state, current, target, StepKind::kReduceScatter, dims);
      }
    } else if (all(current, [](const auto& p) { return !p.is_partial(); })) {
      if (all(current, is_cut)) {
        try_step(state, current, whole, StepKind::kAllGather, dims);
      }
      if (target != current && target != whole &&
          prices_.ranks_of(dims) <= kMaxExchangeRanks) {
        try_step(state, current, target, StepKind::kAllToAll, dims);
      }
    }
  }

  void try_step(
      int64_t state,
      const Placements& current,
      const Placements& next,
      StepKind kind,
      const Dims& dims) {
    auto& node = nodes_[state_of(next)];
    const double least =
        nodes_[state].us + prices_.min_us(current, next, kind, dims);
    if (node.is_closed || least >= node.us || least > nodes_[last_].us ||
        !keeps_order(current, dims) || !keeps_sharding(current, next, dims)) {
      return;
    }
    PlanStep step{kind, dims, current, next};
    prices_.set_cost(step);
    const double us = nodes_[state].us + step.us;
    if (us < node.us) {
      node.us = us;
      node.parent = state;
      node.step = std::move(step);
    }
  }

  // Returns false if a reduction does not commute with one of an inner mesh
  // dim, which must then run first.
  bool keeps_order(const Placements& current, const Dims& dims) const {
    return std::ranges::none_of(dims, [&](int64_t i) {
      for (size_t j = i + 1; current[i].is_partial() && j < current.size();
           ++j) {
        if (current[j].is_partial() && shape_[j] > 1 &&
            !commute(current[i], current[j])) {
          return true;
        }
      }
      return false;
    });
  }

  bool keeps_sharding(
      const Placements& current,
      const Placements& next,
      const Dims& dims) const {
    for (size_t d = 0; d < sizes_.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      const auto before = dim_shards(current, shape_, dim);
      const auto after = dim_shards(next, shape_, dim);
      const auto old = split_cuts(before, dims);
      const auto made = split_cuts(after, dims);
      if (old.outer.size() + old.inner.size() != before.size() ||
          made.outer.size() + made.inner.size() != after.size() ||
          old.outer != made.outer) {
        return false;
      }
      // The given sizes of a Shard count the rows that certain shards leave, so
      // they are valid only behind the same shards as before or after the
      // redistribution.
      const bool given = std::ranges::any_of(
          made.inner, [](const auto& cut) { return !cut.sizes.empty(); });
      if (given && !is_prefix(after, from_cuts_[d]) &&
          !is_prefix(after, to_cuts_[d])) {
        return false;
      }
    }
    return true;
  }

  RedistributePlan plain_plan() const {
    RedistributePlan plan;
    auto current = from_;
    for (const auto& plain : plan_redistribute(
             DTensorSpec(mesh_, from_), DTensorSpec(mesh_, to_))) {
      auto next = current;
      next[plain.mesh_dim] = plain.to;
      PlanStep step{
          step_kind(plain.from, plain.to), {plain.mesh_dim}, current, next};
      prices_.set_cost(step);
      plan.us += step.us;
      plan.steps.push_back(std::move(step));
      current = next;
    }
    return plan;
  }

  const mesh::DeviceMesh& mesh_;
  const std::vector<int64_t>& shape_;
  c10::IntArrayRef sizes_;
  const PlanCosts prices_;
  Placements from_;
  Placements to_;
  std::vector<DimShards> from_cuts_;
  std::vector<DimShards> to_cuts_;
  /// The mesh dims with more than one rank.
  Dims moving_;
  std::vector<std::vector<Placement>> candidates_;
  std::vector<Dims> groups_;
  std::vector<Node> nodes_;
  int64_t last_ = 0;
};

} // namespace

RedistributePlan search_plan(
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::IntArrayRef global_sizes,
    int64_t element_size) {
  return Search(from, to, global_sizes, element_size).plan();
}

} // namespace weft::dtensor
