#include "dtensor/redistribute/step_message.h"

#include <algorithm>
#include <utility>

#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/spec/region.h"

namespace weft::dtensor {
namespace {

using Tensors = std::vector<at::Tensor>;

// The regions that the ranks of a step's group hold before and after the step,
// within what the other mesh dims leave to them.
struct Geometry {
  /// The sizes of the block that this rank's group holds together: those of the
  /// tensor, sharded by the mesh dims that are not part of the step.
  std::vector<int64_t> left;
  std::vector<Region> before;
  std::vector<Region> after;
};

std::vector<int64_t> own_coordinate(const mesh::DeviceMesh& mesh) {
  std::vector<int64_t> coordinate;
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    coordinate.push_back(mesh.coordinate(i));
  }
  return coordinate;
}

Geometry geometry_of(const LocalStep& of) {
  const auto& shape = of.mesh.shape();
  const auto coordinate = own_coordinate(of.mesh);
  Geometry geometry;
  std::vector<DimShards> before;
  std::vector<DimShards> after;
  for (size_t d = 0; d < of.sizes.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    auto split =
        split_cuts(dim_shards(of.step.from, shape, dim), of.step.mesh_dims);
    int64_t left = of.sizes[d];
    for (const auto& cut : split.outer) {
      left = shard_length(cut, left, coordinate[cut.mesh_dim]);
    }
    geometry.left.push_back(left);
    before.push_back(std::move(split.inner));
    after.push_back(
        split_cuts(dim_shards(of.step.to, shape, dim), of.step.mesh_dims)
            .inner);
  }
  geometry.before =
      group_regions(before, geometry.left, shape, of.step.mesh_dims);
  geometry.after =
      group_regions(after, geometry.left, shape, of.step.mesh_dims);
  return geometry;
}

// Returns true if the regions follow each other in the memory of a contiguous
// tensor of sizes `whole`.
bool are_rows(const std::vector<Region>& regions, c10::IntArrayRef whole) {
  int64_t begin = 0;
  for (const auto& region : regions) {
    for (size_t d = 0; d < region.size(); ++d) {
      if (region[d].size() != 1 || (d > 0 && region[d][0].length != whole[d])) {
        return false;
      }
    }
    if (region.empty() ||
        (region[0][0].length > 0 && region[0][0].begin != begin)) {
      return false;
    }
    begin += region[0][0].length;
  }
  return true;
}

bool are_even(const std::vector<Region>& regions) {
  return std::ranges::all_of(regions, [&](const auto& region) {
    return sizes_of(region) == sizes_of(regions[0]);
  });
}

int64_t element_count_of(const std::vector<Region>& regions) {
  int64_t count = 0;
  for (const auto& region : regions) {
    count += element_count(region);
  }
  return count;
}

at::Tensor empty_like(const at::Tensor& local, c10::IntArrayRef sizes) {
  return at::empty(sizes, local.options());
}

Tensors parts_of(const at::Tensor& whole, const std::vector<Region>& regions) {
  Tensors parts;
  for (const auto& region : regions) {
    parts.push_back(take_region(whole, region));
  }
  return parts;
}

void make_gather(
    const LocalStep& of,
    const Geometry& geometry,
    StepMessage& message) {
  message.inputs = {of.local.contiguous()};
  const bool even = are_even(geometry.before);
  const bool rows = are_rows(geometry.before, geometry.left);
  auto whole = empty_like(of.local, geometry.left);
  if (rows) {
    message.outputs = parts_of(whole, geometry.before);
    message.buffer = even ? whole : at::Tensor();
    message.finish = [whole] { return whole; };
    return;
  }
  if (even) {
    auto sizes = of.local.sizes().vec();
    sizes.insert(sizes.begin(), message.group.size());
    message.buffer = empty_like(of.local, sizes);
    message.outputs = message.buffer.unbind(0);
  } else {
    for (const auto& region : geometry.before) {
      message.outputs.push_back(empty_like(of.local, sizes_of(region)));
    }
  }
  message.finish = [whole, parts = message.outputs, regions = geometry.before] {
    for (size_t r = 0; r < parts.size(); ++r) {
      put_region(whole, regions[r], parts[r]);
    }
    return whole;
  };
}

// Copies the regions to one buffer, one after the other in rank order. Returns
// them as views of the buffer.
Tensors packed_parts(
    const at::Tensor& whole,
    const std::vector<Region>& regions) {
  const auto buffer = at::empty({element_count_of(regions)}, whole.options());
  Tensors parts;
  int64_t begin = 0;
  for (const auto& region : regions) {
    const auto sizes = sizes_of(region);
    const int64_t count = element_count(region);
    auto part = buffer.narrow(0, begin, count).view(sizes);
    copy_region(part, whole, region);
    parts.push_back(std::move(part));
    begin += count;
  }
  return parts;
}

void make_reduce_scatter(
    const LocalStep& of,
    const Geometry& geometry,
    StepMessage& message) {
  const auto local = of.local.contiguous();
  if (are_rows(geometry.after, geometry.left)) {
    message.inputs = parts_of(local, geometry.after);
    message.buffer = are_even(geometry.after) ? local : at::Tensor();
  } else {
    message.inputs = packed_parts(local, geometry.after);
  }
  auto own =
      empty_like(of.local, sizes_of(geometry.after[message.group.rank()]));
  message.outputs = {own};
  message.finish = [own] { return own; };
}

// Changes S to P(sum) without communication: each rank has its part in a tensor
// of zeros.
at::Tensor shard_to_partial(const LocalStep& of) {
  const auto geometry = geometry_of(of);
  auto whole = at::zeros(geometry.left, of.local.options());
  put_region(
      whole,
      geometry.before[of.mesh.coordinate(of.step.mesh_dims[0])],
      of.local);
  return whole;
}

// Changes R to P without communication. For a sum, rank 0 keeps the values and
// the other ranks hold zeros, so that the sum is exact.
at::Tensor
replicate_to_partial(const at::Tensor& local, ReduceOp op, int64_t rank) {
  if (op == ReduceOp::kSum) {
    return rank == 0 ? local : at::zeros_like(local);
  }
  check_partial_form(op, local.scalar_type());
  return local;
}

} // namespace

at::Tensor run_local_step(const LocalStep& of) {
  const int64_t i = of.step.mesh_dims[0];
  const auto& from = of.step.from[i];
  const auto& to = of.step.to[i];
  const int64_t rank = of.mesh.coordinate(i);
  if (from.is_partial()) {
    // The step is from P(avg) to P(sum).
    check_partial_form(ReduceOp::kAvg, of.local.scalar_type());
    return of.local / of.mesh.size(i);
  }
  if (from.is_shard()) {
    // A change to another shard is local only if it is the same sharding, so
    // the local tensor stays.
    return to.is_partial() ? shard_to_partial(of) : of.local;
  }
  if (to.is_partial()) {
    return replicate_to_partial(of.local, to.reduce_op(), rank);
  }
  return take_region(of.local, geometry_of(of).after[rank]).contiguous();
}

StepMessage make_exchange(
    const mesh::Communicator& group,
    const ExchangeMap& map,
    const at::Tensor& local) {
  StepMessage message{
      .kind = StepKind::kAllToAll,
      .group = group,
      .buffer = {},
      .inputs = {},
      .outputs = {},
      .finish = {}};
  const int64_t rank = group.rank();
  auto result = empty_like(local, sizes_of(map.after(rank)));
  std::vector<Region> to;
  const auto nothing = at::empty({0}, local.options());
  for (int64_t r = 0; r < group.size(); ++r) {
    auto sent = map.sent(rank, r);
    auto received = map.sent(r, rank);
    if (r == rank) {
      if (element_count(sent) > 0) {
        put_region(
            result,
            positions_in(map.after(rank), sent),
            take_region(local, positions_in(map.before(rank), sent)));
      }
      message.inputs.push_back(nothing);
      message.outputs.push_back(nothing);
      to.emplace_back();
      continue;
    }
    message.inputs.push_back(
        element_count(sent) > 0
            ? take_region(local, positions_in(map.before(rank), sent))
            : nothing);
    if (element_count(received) == 0) {
      message.outputs.push_back(nothing);
      to.emplace_back();
      continue;
    }
    auto positions = positions_in(map.after(rank), received);
    // A box is received directly into the result. Other positions are received
    // in a buffer, from which finish() copies them.
    const bool direct = is_box(positions);
    message.outputs.push_back(
        direct ? take_region(result, positions)
               : empty_like(local, sizes_of(received)));
    to.push_back(direct ? Region() : std::move(positions));
  }
  message.finish = [result, to, parts = message.outputs] {
    for (size_t r = 0; r < to.size(); ++r) {
      if (!to[r].empty()) {
        put_region(result, to[r], parts[r]);
      }
    }
    return result;
  };
  return message;
}

StepMessage make_message(const LocalStep& of) {
  StepMessage message{
      .kind = of.step.kind,
      .group = group_of(of.mesh, of.step.mesh_dims),
      .op = of.step.from[of.step.mesh_dims[0]].reduce_op(),
      .buffer = {},
      .inputs = {},
      .outputs = {},
      .finish = {}};
  switch (of.step.kind) {
    case StepKind::kAllReduce: {
      auto buffer = of.is_owned && of.local.is_contiguous()
                        ? of.local
                        : of.local.clone(at::MemoryFormat::Contiguous);
      message.buffer = buffer;
      message.finish = [buffer] { return buffer; };
      break;
    }
    case StepKind::kAllGather:
      make_gather(of, geometry_of(of), message);
      break;
    case StepKind::kReduceScatter:
      make_reduce_scatter(of, geometry_of(of), message);
      break;
    default: {
      auto geometry = geometry_of(of);
      return make_exchange(
          message.group,
          ExchangeMap(std::move(geometry.before), std::move(geometry.after)),
          of.local);
    }
  }
  return message;
}

mesh::Work send(const StepMessage& message, std::string_view name) {
  auto group = message.group;
  const bool even = message.buffer.defined();
  switch (message.kind) {
    case StepKind::kAllReduce:
      return group.all_reduce(message.buffer, message.op, name);
    case StepKind::kAllGather:
      return even ? group.all_gather(message.buffer, message.inputs[0], name)
                  : group.all_gather_uneven(
                        message.outputs, message.inputs[0], name);
    case StepKind::kReduceScatter:
      return even ? group.reduce_scatter(
                        message.outputs[0], message.buffer, message.op, name)
                  : group.reduce_scatter_uneven(
                        message.outputs[0], message.inputs, message.op, name);
    default:
      return group.all_to_all(message.outputs, message.inputs, name);
  }
}

} // namespace weft::dtensor
