#include "dtensor/ops/foreach_norm.h"

#include <algorithm>
#include <cmath>

#include <ATen/OpMathType.h>
#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/scopes/comm_debug.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/implicit_redistribution.h"

namespace weft::dtensor {
namespace {

// The reduction that joins the norms of parts to the full tensor's norm: a sum
// of powers, for order 0 (the number of elements that are not 0) a sum, for
// infinite orders a maximum or minimum.
struct Join {
  explicit Join(double p) : order(p) {}

  bool is_extremum() const { return std::isinf(order); }
  bool uses_powers() const { return !is_extremum() && order != 0; }
  ReduceOp op() const {
    return !is_extremum() ? ReduceOp::kSum
           : order > 0    ? ReduceOp::kMax
                          : ReduceOp::kMin;
  }
  double neutral() const {
    return order == -INFINITY || (order < 0 && uses_powers()) ? INFINITY : 0.0;
  }

  double order;
};

struct Group {
  mesh::DeviceMesh mesh;
  std::vector<int64_t> cut;
  at::ScalarType dtype;
  std::vector<size_t> members;
};

std::vector<int64_t> dim_shards(const DTensorSpec& spec) {
  std::vector<int64_t> cut;
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (spec.placement(i).is_shard()) {
      cut.push_back(i);
    }
  }
  return cut;
}

void add_to_group(
    std::vector<Group>& groups,
    const DTensorSpec& spec,
    at::ScalarType dtype,
    size_t member) {
  auto cut = dim_shards(spec);
  if (cut.empty()) {
    return;
  }
  auto group = std::ranges::find_if(groups, [&](const Group& known) {
    return known.dtype == dtype && known.cut == cut &&
           known.mesh == spec.mesh();
  });
  if (group == groups.end()) {
    groups.push_back({spec.mesh(), std::move(cut), dtype, {}});
    group = groups.end() - 1;
  }
  group->members.push_back(member);
}

// Joins the norms of a group's tensors.
// Collective: the ranks of the mesh dims that shard the group.
void join_group(
    const Group& group,
    const Join& join,
    std::vector<at::Tensor>& norms) {
  std::vector<at::Tensor> own;
  for (const size_t i : group.members) {
    own.push_back(norms[i]);
  }
  auto joined = at::stack(own).to(at::toOpMathType(group.dtype));
  if (join.uses_powers()) {
    joined.pow_(join.order);
  }
  for (const int64_t i : group.cut) {
    group.mesh.group(i).all_reduce(joined, join.op(), "_foreach_norm").wait();
  }
  if (join.uses_powers()) {
    joined.pow_(1.0 / join.order);
  }
  const auto whole = joined.to(group.dtype).unbind();
  for (size_t k = 0; k < group.members.size(); ++k) {
    // The clone has memory of its own, so that writing to one norm does not
    // change another.
    norms[group.members[k]] = whole[k].clone();
  }
}

// Returns this rank's part under `spec`, which is without Partial, because the
// norms of a Partial's terms cannot be joined.
at::Tensor part_of(const at::Tensor& self, const DTensorSpec& spec) {
  const auto& from = spec_of(self);
  if (from == spec) {
    return dtensor_impl(self)->local();
  }
  check_implicit_redistribution(
      "aten::_foreach_norm", self, from, spec, [&] { return describe(self); });
  const detail::RedistributeScope move(self, from, spec, /*is_implicit=*/true);
  return redistribute_local(
      dtensor_impl(self)->local(),
      self.sizes(),
      from,
      spec,
      "aten::_foreach_norm");
}

// Computes the norms of parts, in one call if possible. libtorch has no
// infinite or negative norm of an empty tensor, so an empty part then gets the
// neutral norm.
std::vector<at::Tensor> part_norms(
    const std::vector<at::Tensor>& parts,
    const Join& join,
    std::optional<at::ScalarType> dtype) {
  const bool any_empty = std::ranges::any_of(
      parts, [](const at::Tensor& part) { return part.numel() == 0; });
  if (!any_empty || (!join.is_extremum() && join.neutral() == 0)) {
    return at::_foreach_norm(parts, join.order, dtype);
  }
  std::vector<at::Tensor> norms;
  for (const auto& part : parts) {
    norms.push_back(
        part.numel() > 0
            ? at::linalg_vector_norm(part, join.order, {}, false, dtype)
            : at::linalg_vector_norm(part, 2, {}, false, dtype)
                  .fill_(join.neutral()));
  }
  return norms;
}

} // namespace

std::vector<at::Tensor> foreach_norm(
    at::TensorList self,
    const at::Scalar& ord,
    std::optional<at::ScalarType> dtype) {
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<at::Tensor> parts;
  std::vector<DTensorSpec> specs;
  for (const auto& tensor : self) {
    check_materialized(tensor, "aten::_foreach_norm");
    specs.push_back(spec_of(tensor).without_partial());
    parts.push_back(part_of(tensor, specs.back()));
  }
  const Join join(ord.toDouble());
  auto norms = part_norms(parts, join, dtype);
  std::vector<Group> groups;
  for (size_t i = 0; i < norms.size(); ++i) {
    add_to_group(groups, specs[i], norms[i].scalar_type(), i);
  }
  for (const auto& group : groups) {
    join_group(group, join, norms);
  }
  for (size_t i = 0; i < norms.size(); ++i) {
    const Placements whole(specs[i].mesh_ndim(), Replicate());
    norms[i] = make_dtensor(norms[i], specs[i].with(whole), {}, {});
  }
  return norms;
}

} // namespace weft::dtensor
