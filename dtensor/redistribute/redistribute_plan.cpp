#include "dtensor/redistribute/redistribute_plan.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dtensor/redistribute/cost_model.h"
#include "dtensor/redistribute/redistribute.h"
#include "dtensor/spec/dim_shards.h"

namespace weft::dtensor {
namespace {

using CutLists = std::vector<DimShards>;

int64_t dims_named(const Placements& placements) {
  int64_t dims = 0;
  for (const auto& placement : placements) {
    if (placement.is_shard()) {
      dims = std::max(dims, placement.tensor_dim() + 1);
    }
  }
  return dims;
}

CutLists
all_cuts(const Placements& placements, c10::IntArrayRef shape, int64_t dims) {
  CutLists cuts;
  for (int64_t d = 0; d < dims; ++d) {
    cuts.push_back(dim_shards(placements, shape, d));
  }
  return cuts;
}

bool is_last(const DimShards& cuts, int64_t mesh_dim) {
  return !cuts.empty() && cuts.back().mesh_dim == mesh_dim;
}

// Note [Steps of a redistribution]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Every step changes the placement of one mesh dim. The shards of a tensor dim
// are gathered from the last in their order to the first (see
// Note [Order of shards]), except for those with which the target begins as
// well. Then the other shards of the target are added behind these in their
// order. So no step changes the meaning of another mesh dim's shard. The steps
// depend on placements and the mesh's shape only, never on sizes or a
// coordinate, so all ranks of the mesh take the same steps.
class Planner {
 public:
  Planner(const DTensorSpec& from, const DTensorSpec& to)
      : shape_(from.mesh().shape()),
        current_(from.placements()),
        target_(to.placements()) {}

  std::vector<RedistributeStep> plan() {
    const int64_t dims = std::max(dims_named(current_), dims_named(target_));
    target_cuts_ = all_cuts(target_, shape_, dims);
    for (size_t i = 0; i < current_.size(); ++i) {
      if (shape_[i] == 1) {
        move(i, target_[i]);
      }
    }
    drop_shards();
    reduce_inner_first();
    reach_target();
    return std::move(steps_);
  }

 private:
  void move(size_t i, const Placement& placement) {
    if (current_[i] != placement) {
      steps_.push_back({static_cast<int64_t>(i), current_[i], placement});
      current_[i] = placement;
    }
  }

  DimShards cuts(int64_t tensor_dim) const {
    return dim_shards(current_, shape_, tensor_dim);
  }

  // Returns how many of the first cuts equal the target's first ones.
  size_t kept(const DimShards& cuts, int64_t tensor_dim) const {
    const auto& target = target_cuts_[tensor_dim];
    size_t count = 0;
    while (count < cuts.size() && count < target.size() &&
           cuts[count] == target[count]) {
      ++count;
    }
    return count;
  }

  int64_t next_shard_to_drop() const {
    for (size_t i = current_.size(); i-- > 0;) {
      if (current_[i].is_shard() && shape_[i] > 1) {
        const int64_t dim = current_[i].tensor_dim();
        const auto list = cuts(dim);
        if (is_last(list, static_cast<int64_t>(i)) &&
            kept(list, dim) < list.size()) {
          return static_cast<int64_t>(i);
        }
      }
    }
    return -1;
  }

  // Returns true if `mesh_dim` can take its target's shard now, because no
  // other change of the tensor dim has to come before.
  bool can_shard(size_t mesh_dim) {
    const Placement before = current_[mesh_dim];
    current_[mesh_dim] = target_[mesh_dim];
    const int64_t dim = target_[mesh_dim].tensor_dim();
    const auto list = cuts(dim);
    current_[mesh_dim] = before;
    return is_last(list, static_cast<int64_t>(mesh_dim)) &&
           kept(list, dim) == list.size();
  }

  // Returns true if one step leads from the last shard of a tensor dim to the
  // target. S(a) to S(b) is one all_to_all, and S to P(sum) sends nothing. A
  // change within one tensor dim is one all_to_all too, if each rank has one
  // range of rows before and after.
  bool can_go_directly(size_t mesh_dim) {
    const auto& from = current_[mesh_dim];
    const auto& to = target_[mesh_dim];
    if (!to.is_shard()) {
      return to.is_partial(ReduceOp::kSum);
    }
    if (!can_shard(mesh_dim)) {
      return false;
    }
    const int64_t dim = to.tensor_dim();
    const auto mine = [&](const DimShard& cut) {
      return cut.mesh_dim == static_cast<int64_t>(mesh_dim);
    };
    return from.tensor_dim() != dim ||
           (cuts(dim).back().split_factor == 1 &&
            std::ranges::find_if(target_cuts_[dim], mine)->split_factor == 1);
  }

  void drop_shards() {
    for (int64_t i = next_shard_to_drop(); i >= 0; i = next_shard_to_drop()) {
      move(i, can_go_directly(i) ? target_[i] : Replicate());
    }
  }

  // Reduces all inner Partials before a Partial that does not commute with one
  // of them.
  void reduce_inner_first() {
    for (size_t i = 0; i < current_.size(); ++i) {
      if (!current_[i].is_partial() || current_[i] == target_[i]) {
        continue;
      }
      const auto inner = std::span(current_).subspan(i + 1);
      const bool waits = std::ranges::any_of(inner, [&](const auto& other) {
        return other.is_partial() && !commute(current_[i], other);
      });
      for (size_t j = current_.size(); waits && j-- > i + 1;) {
        if (current_[j].is_partial()) {
          move(j, Replicate());
        }
      }
    }
  }

  // Takes the remaining steps. Shards of one tensor dim are added in their
  // order, which need not be the order of the mesh dims.
  void reach_target() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < current_.size(); ++i) {
        if (current_[i] == target_[i] ||
            (target_[i].is_shard() && !current_[i].is_shard() &&
             !can_shard(i))) {
          continue;
        }
        if (current_[i].is_partial() && target_[i].is_partial() &&
            !is_scaling(current_[i], target_[i])) {
          move(i, Replicate());
        }
        move(i, target_[i]);
        changed = true;
      }
    }
  }

  const std::vector<int64_t>& shape_;
  Placements current_;
  const Placements& target_;
  CutLists target_cuts_;
  std::vector<RedistributeStep> steps_;
};

} // namespace

std::vector<RedistributeStep> plan_redistribute(
    const DTensorSpec& from,
    const DTensorSpec& to) {
  if (from == to) {
    return {};
  }
  return Planner(from, to).plan();
}

namespace {

// The plans that were made on a mesh. A full table is cleared, because plans
// are cheap to make.
struct PlanTable {
  static constexpr size_t kMax = 8192;
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
      search_plan(from, to, global_sizes, element_size));
  const std::lock_guard lock(table.mutex);
  if (table.plans.size() >= PlanTable::kMax) {
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
