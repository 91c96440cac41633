#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "dtensor/redistribute/redistribute_plan.h"

namespace weft::dtensor {
namespace {

// Plans that were made on a mesh. One that is full is emptied: plans are cheap.
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
