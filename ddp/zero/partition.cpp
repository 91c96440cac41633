#include "ddp/zero/partition.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "data_parallel/parameters/row_placement.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"

// Note [Parts of parameters]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// The optimizer shards over dp what a rank holds of a parameter: a plain
// tensor, or the local tensor of a DTensor on other mesh dims. The state of a
// part is saved as a shard of the parameter's full state. So there must be a
// placement over dp that describes the part, in addition to the parameter's
// placements on its own mesh dims:
//  - a parameter that one replica owns is a Shard with given sizes: all rows
//    belong to the owner;
//  - a parameter that all replicas share is a Shard(0), or a StridedShard(0) if
//    mesh dims after dp shard the rows too, because those shard them first.
// If another mesh dim shards the rows by given sizes, or a mesh dim before dp
// shards them unevenly, the ranks have different numbers of rows, which the
// sizes of one Shard cannot express. An owned parameter then uses another
// tensor dim. If there is none, every replica keeps the state.

namespace weft::ddp {
namespace {

std::optional<dtensor::Placement> owned_placement(
    const at::Tensor& parameter,
    const mesh::DeviceMesh& dp,
    int64_t owner) {
  for (int64_t d = 0; d < parameter.dim(); ++d) {
    const auto cuts = data_parallel::other_shards_of_dim(parameter, dp, d);
    if (cuts.is_plain && parameter.size(d) % cuts.before == 0) {
      std::vector<int64_t> rows(dp.size(), 0);
      rows[owner] = parameter.size(d) / cuts.before;
      return dtensor::Shard(d, std::move(rows));
    }
  }
  return std::nullopt;
}

void check_mesh(const at::Tensor& parameter, const mesh::DeviceMesh& dp) {
  const auto* impl = dtensor::dtensor_impl(parameter);
  if (!impl || impl->spec().mesh_ndim() == 0) {
    return;
  }
  const auto& own = impl->spec().mesh();
  const auto& dp_name = dp.mesh_dim_names().front();
  const mesh::ErrorContext where{dp.describe_rank()};
  WEFT_CHECK(
      own.root() == dp.root() && own.root().has_mesh_dim(dp_name),
      "ZeroRedundancyOptimizer",
      where,
      "a parameter of sizes ",
      parameter.sizes(),
      " is on ",
      own.to_string(),
      ", which has another root mesh than the replicas'. Take both from one "
      "DeviceMesh::create().");
  WEFT_CHECK(
      !own.has_mesh_dim(dp_name),
      "ZeroRedundancyOptimizer",
      where,
      "a parameter of sizes ",
      parameter.sizes(),
      " is ",
      impl->spec().to_string(),
      ", which includes the replicas' mesh dim \"",
      dp_name,
      "\". Place it on other mesh dims only.");
}

int64_t bytes_in(const at::Tensor& parameter) {
  return parameter.numel() * static_cast<int64_t>(parameter.element_size());
}

} // namespace

PartPlanner::PartPlanner(mesh::DeviceMesh dp, ZeroPartition partition)
    : dp_(std::move(dp)), partition_(partition), owned_bytes_(dp_.size(), 0) {}

std::vector<ZeroPart> PartPlanner::plan(
    const std::vector<at::Tensor>& parameters) {
  using Kind = ZeroPart::Kind;
  std::vector<ZeroPart> parts(parameters.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& parameter = parameters[i];
    check_mesh(parameter, dp_);
    if (dp_.size() == 1 || parameter.dim() == 0 || parameter.numel() == 0) {
      continue;
    }
    if (partition_ == ZeroPartition::kEvenSplit) {
      parts[i] = {
          .kind = Kind::kSharded,
          .placement = data_parallel::row_placement(parameter, dp_)};
    } else if (owned_placement(parameter, dp_, 0)) {
      parts[i].kind = Kind::kOwned;
    }
  }
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return bytes_in(parameters[a]) > bytes_in(parameters[b]);
  });
  for (const size_t i : order) {
    if (parts[i].kind == Kind::kOwned) {
      const auto least =
          std::min_element(owned_bytes_.begin(), owned_bytes_.end());
      *least += bytes_in(parameters[i]);
      parts[i].owner = least - owned_bytes_.begin();
      parts[i].placement =
          owned_placement(parameters[i], dp_, parts[i].owner).value();
    }
  }
  return parts;
}

} // namespace weft::ddp
