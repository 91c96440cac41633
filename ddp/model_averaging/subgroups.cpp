#include "ddp/model_averaging/subgroups.h"

#include <string>
#include <vector>

#include "mesh/error/error.h"

namespace weft::ddp {

mesh::Communicator new_subgroups(
    const mesh::DeviceMesh& mesh,
    int64_t group_size) {
  constexpr const char* kOp = "new_subgroups";
  const auto where = [&] { return mesh::ErrorContext{mesh.describe_rank()}; };
  WEFT_CHECK_EQ(
      kOp,
      mesh.ndim(),
      1,
      where(),
      "Take a slice of one dim, e.g. mesh[\"dp\"].");
  WEFT_CHECK_LE(kOp, 1, group_size, where(), "A group has at least one rank.");
  WEFT_CHECK_EQ(
      kOp,
      mesh.size() % group_size,
      0,
      where(),
      "The ",
      mesh.size(),
      " ranks cannot be cut into groups of ",
      group_size,
      ". Choose a size that divides.");
  const auto begin =
      mesh.ranks().begin() + mesh.coordinate(0) / group_size * group_size;
  const std::vector<int64_t> ranks(begin, begin + group_size);
  const auto name = mesh::detail::concat(
      mesh.mesh_dim_names().front(),
      " by ",
      group_size,
      "/",
      mesh.coordinate(0) / group_size);
  // Meshes beside this one are cut at the same time, into other ranks.
  const auto scope = mesh::detail::concat(
      "subgroups ", mesh.world().next_id(), " at ", ranks.front());
  return mesh.world().make_group(name, ranks, scope);
}

} // namespace weft::ddp
