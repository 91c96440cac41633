#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "dtensor/redistribute.h"
#include "dtensor/redistribute_plan.h"
#include "dtensor/region.h"

// Note [Shortest plans]
// ~~~~~~~~~~~~~~~~~~~~~
// A state is one placement a mesh dim, of a few that can help: where the dim is
// now and is to be, whole, and cut along a dim that another mesh dim cuts. An
// edge changes one mesh dim's placement, or those of several in one collective
// over all their ranks: gathers, reductions of one kind, and exchanges (see
// Note [Exchanges]), which reach any placements without pending reductions.
// Edges that would change what another mesh dim's cut means do not exist:
// the cuts that an edge undoes and makes are the last ones of their tensor dim,
// see Note [Order of cuts]. Nor does a reduction before one of an inner mesh
// dim with which it does not commute. Dijkstra's algorithm finds the cheapest
// way; of equal ones it takes the first in the order of mesh dims and
// placements. Prices come from Note [What a step costs].
//
// A group over several mesh dims has the ranks that differ in these dims alone.
// All of them run the step that needs it and only they make it, so it may be
// made where it is first needed; no plan depends on whether somebody made it
// before, and the bits of a sum neither.
//
// Where there would be too many states (many mesh dims), the steps of
// Note [Steps of a redistribution] are taken.

namespace weft::dtensor {
namespace {

// Exchanges over more ranks are not looked at: pricing one compares all pairs.
constexpr int64_t kMostExchangeRanks = 64;
constexpr int64_t kMostStates = 4096;

using Dims = std::vector<int64_t>;

bool is_prefix(const DimCuts& cuts, const DimCuts& of) {
  return cuts.size() <= of.size() &&
         std::equal(cuts.begin(), cuts.end(), of.begin());
}

// What the largest part has left of `size` rows after `cuts`.
int64_t largest_part(const DimCuts& cuts, int64_t size) {
  for (const auto& cut : cuts) {
    // By the chunk rule, that of rank 0.
    size = cut.sizes.empty() ? cut_length(cut, size, 0)
                             : std::ranges::max(cut.sizes);
  }
  return size;
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
        element_size_(static_cast<double>(element_size)),
        from_(from.placements()),
        to_(to.placements()) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      from_cuts_.push_back(cuts_of(from_, shape_, dim));
      to_cuts_.push_back(cuts_of(to_, shape_, dim));
    }
    for (int64_t i = 0; i < from.mesh_ndim(); ++i) {
      if (shape_[i] > 1) {
        moving_.push_back(i);
        links_.push_back(mesh::link_cost(mesh_, i));
      } else {
        // One rank: any placement means the same.
        from_[i] = to_[i];
        links_.emplace_back();
      }
    }
    list_candidates();
    list_groups();
  }

  RedistributePlan plan() {
    if (states() > kMostStates) {
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
            // Behind the cuts of later mesh dims.
            add(StridedShard(cut.tensor_dim(), later_parts(i, cut)));
          }
        }
      }
      candidates_.push_back(std::move(list));
    }
  }

  // Into how many parts the mesh dims after `i` cut a tensor dim or will.
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

  // All lists of several mesh dims.
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
          std::min(count * static_cast<int64_t>(list.size()), kMostStates + 1);
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

  // Steps of several mesh dims at once.
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
          ranks_of(dims) <= kMostExchangeRanks) {
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
    const double least = nodes_[state].us + least_us(current, next, kind, dims);
    if (node.is_closed || least >= node.us || least > nodes_[last_].us ||
        !keeps_order(current, dims) || !keeps_cuts(current, next, dims)) {
      return;
    }
    PlanStep step{kind, dims, current, next};
    price(step);
    const double us = nodes_[state].us + step.us;
    if (us < node.us) {
      node.us = us;
      node.parent = state;
      node.step = std::move(step);
    }
  }

  // What a step costs whatever it moves: spares a look at most of them.
  double least_us(
      const Placements& current,
      const Placements& next,
      StepKind kind,
      const Dims& dims) const {
    const bool may_be_a_name =
        kind == StepKind::kAllToAll && next[dims[0]].is_shard() &&
        current[dims[0]].is_shard(next[dims[0]].tensor_dim());
    return may_be_a_name ? 0 : step_us(kind, ranks_of(dims), 0, link_of(dims));
  }

  // A group is as slow as the slowest of its mesh dims.
  mesh::LinkCost link_of(const Dims& dims) const {
    mesh::LinkCost link = links_[dims[0]];
    for (const int64_t i : dims) {
      link.latency_us = std::max(link.latency_us, links_[i].latency_us);
      link.bandwidth_gb_s =
          std::min(link.bandwidth_gb_s, links_[i].bandwidth_gb_s);
    }
    return link;
  }

  // A reduction that does not commute with one of an inner mesh dim waits.
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

  bool keeps_cuts(
      const Placements& current,
      const Placements& next,
      const Dims& dims) const {
    for (size_t d = 0; d < sizes_.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      const auto before = cuts_of(current, shape_, dim);
      const auto after = cuts_of(next, shape_, dim);
      const auto old = split_cuts(before, dims);
      const auto made = split_cuts(after, dims);
      if (old.outer.size() + old.inner.size() != before.size() ||
          made.outer.size() + made.inner.size() != after.size() ||
          old.outer != made.outer) {
        return false;
      }
      // Given numbers of rows are those of what certain cuts leave.
      const bool given = std::ranges::any_of(
          made.inner, [](const auto& cut) { return !cut.sizes.empty(); });
      if (given && !is_prefix(after, from_cuts_[d]) &&
          !is_prefix(after, to_cuts_[d])) {
        return false;
      }
    }
    return true;
  }

  int64_t ranks_of(const Dims& dims) const {
    int64_t ranks = 1;
    for (const int64_t i : dims) {
      ranks *= shape_[i];
    }
    return ranks;
  }

  // Bytes of the largest part under the cuts by mesh dims other than `dims`.
  double largest_bytes(const Placements& placements, const Dims& dims) const {
    double bytes = element_size_;
    for (size_t d = 0; d < sizes_.size(); ++d) {
      const auto cuts = cuts_of(placements, shape_, static_cast<int64_t>(d));
      bytes *= static_cast<double>(
          largest_part(split_cuts(cuts, dims).outer, sizes_[d]));
    }
    return bytes;
  }

  bool is_same_cut(const PlanStep& step) const {
    for (size_t d = 0; d < sizes_.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      if (cuts_of(step.from, shape_, dim) != cuts_of(step.to, shape_, dim)) {
        return false;
      }
    }
    return true;
  }

  double busiest_bytes(const PlanStep& step) const {
    std::vector<DimCuts> before;
    std::vector<DimCuts> after;
    std::vector<int64_t> left;
    for (size_t d = 0; d < sizes_.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      const auto split =
          split_cuts(cuts_of(step.from, shape_, dim), step.mesh_dims);
      before.push_back(split.inner);
      after.push_back(
          split_cuts(cuts_of(step.to, shape_, dim), step.mesh_dims).inner);
      left.push_back(largest_part(split.outer, sizes_[d]));
    }
    const ExchangeMap map(
        group_regions(before, left, shape_, step.mesh_dims),
        group_regions(after, left, shape_, step.mesh_dims));
    return element_size_ * static_cast<double>(map.busiest());
  }

  void price(PlanStep& step) const {
    if (step.kind == StepKind::kAllToAll && is_same_cut(step)) {
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
      // What a rank keeps is not sent: as if it were one part of `ranks`.
      step.bytes = busiest_bytes(step) * static_cast<double>(ranks) /
                   static_cast<double>(ranks - 1);
    }
    step.us = step_us(step.kind, ranks, step.bytes, link);
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
      price(step);
      plan.us += step.us;
      plan.steps.push_back(std::move(step));
      current = next;
    }
    return plan;
  }

  const mesh::DeviceMesh& mesh_;
  const std::vector<int64_t>& shape_;
  c10::IntArrayRef sizes_;
  double element_size_;
  Placements from_;
  Placements to_;
  std::vector<DimCuts> from_cuts_;
  std::vector<DimCuts> to_cuts_;
  /// Mesh dims of several ranks.
  Dims moving_;
  std::vector<mesh::LinkCost> links_;
  std::vector<std::vector<Placement>> candidates_;
  std::vector<Dims> groups_;
  std::vector<Node> nodes_;
  int64_t last_ = 0;
};

// Plans that were made on a mesh. One that is full is emptied: plans are cheap.
struct PlanTable {
  static constexpr size_t kMost = 8192;
  using Key =
      std::tuple<const void*, const void*, int64_t, std::vector<int64_t>>;
  std::mutex mutex;
  std::map<Key, std::shared_ptr<const RedistributePlan>> plans;
};

} // namespace

std::shared_ptr<const RedistributePlan> find_plan(
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::IntArrayRef global_sizes,
    int64_t element_size) {
  auto& table = from.mesh().extension<PlanTable>();
  PlanTable::Key key{from.id(), to.id(), element_size, global_sizes.vec()};
  {
    const std::lock_guard lock(table.mutex);
    if (const auto found = table.plans.find(key); found != table.plans.end()) {
      return found->second;
    }
  }
  auto plan = std::make_shared<const RedistributePlan>(
      Search(from, to, global_sizes, element_size).plan());
  const std::lock_guard lock(table.mutex);
  if (table.plans.size() >= PlanTable::kMost) {
    table.plans.clear();
  }
  return table.plans.emplace(std::move(key), std::move(plan)).first->second;
}

mesh::Communicator group_of(
    const mesh::DeviceMesh& mesh,
    const std::vector<int64_t>& mesh_dims) {
  if (mesh_dims.size() == 1) {
    return mesh.group(mesh_dims[0]);
  }
  std::vector<std::string> names;
  for (const int64_t i : mesh_dims) {
    names.push_back(mesh.mesh_dim_names()[i]);
  }
  return mesh.slice(names).flatten().group(0);
}

} // namespace weft::dtensor
