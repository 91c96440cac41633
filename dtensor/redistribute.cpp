#include "dtensor/redistribute.h"

#include <limits>
#include <string>

#include <torch/torch.h>

#include "dtensor/dtensor_impl.h"
#include "mesh/communicator.h"
#include "mesh/error.h"

namespace weft::dtensor {
namespace {

// A shard has to be given up for a while if it changes itself, or if a mesh
// dim outside it cuts the same tensor dim and changes.
bool must_gather(
    const Placements& current,
    const Placements& target,
    size_t mesh_dim) {
  const auto& placement = current[mesh_dim];
  if (placement != target[mesh_dim]) {
    return true;
  }
  for (size_t outer = 0; outer < mesh_dim; ++outer) {
    const bool cuts_same = current[outer].is_shard(placement.tensor_dim()) ||
                           target[outer].is_shard(placement.tensor_dim());
    if (cuts_same && current[outer] != target[outer]) {
      return true;
    }
  }
  return false;
}

// Whether no mesh dim but this one cuts what `placement` cuts.
bool cuts_alone(
    const Placements& current,
    const Placements& target,
    size_t mesh_dim,
    const Placement& placement) {
  for (size_t other = 0; other < current.size(); ++other) {
    if (other != mesh_dim && (current[other].is_shard(placement.tensor_dim()) ||
                              target[other].is_shard(placement.tensor_dim()))) {
      return false;
    }
  }
  return true;
}

// One step from a shard where no other mesh dim is involved: Shard(a) to
// Shard(b) is one all_to_all, Shard to P(sum) moves nothing.
bool can_go_directly(
    const Placements& current,
    const Placements& target,
    size_t mesh_dim) {
  const auto& from = current[mesh_dim];
  const auto& to = target[mesh_dim];
  if (!from.is_shard() || from == to ||
      !cuts_alone(current, target, mesh_dim, from)) {
    return false;
  }
  return to.is_partial(ReduceOp::kSum) ||
         (to.is_shard() && cuts_alone(current, target, mesh_dim, to));
}

struct StepContext {
  mesh::Communicator& group;
  // Size of the dim in question before this mesh dim cuts it.
  int64_t whole;
  std::string_view name;
};

at::Tensor
gather_dim(const at::Tensor& local, int64_t dim, const StepContext& context) {
  const int64_t n = context.group.size();
  auto sizes = local.sizes().vec();
  if (context.whole % n == 0 && dim == 0) {
    sizes[0] = context.whole;
    auto output = at::empty(sizes, local.options());
    context.group.all_gather(output, local.contiguous(), context.name).wait();
    return output;
  }
  std::vector<at::Tensor> parts;
  if (context.whole % n == 0) {
    sizes[dim] = shard_range(context.whole, n, 0).length;
    auto buffer_sizes = sizes;
    buffer_sizes.insert(buffer_sizes.begin(), n);
    auto buffer = at::empty(buffer_sizes, local.options());
    context.group.all_gather(buffer, local.contiguous(), context.name).wait();
    parts = buffer.unbind(0);
  } else {
    for (int64_t r = 0; r < n; ++r) {
      sizes[dim] = shard_range(context.whole, n, r).length;
      parts.push_back(at::empty(sizes, local.options()));
    }
    context.group.all_gather_uneven(parts, local.contiguous(), context.name)
        .wait();
  }
  return at::cat(parts, dim);
}

std::vector<at::Tensor>
split_dim(const at::Tensor& local, int64_t dim, int64_t shards) {
  std::vector<at::Tensor> parts;
  for (int64_t r = 0; r < shards; ++r) {
    const auto range = shard_range(local.size(dim), shards, r);
    parts.push_back(local.narrow(dim, range.begin, range.length));
  }
  return parts;
}

at::Tensor reduce_scatter_dim(
    const at::Tensor& local,
    int64_t dim,
    ReduceOp op,
    const StepContext& context) {
  const int64_t n = context.group.size();
  const auto parts = split_dim(local, dim, n);
  auto output = at::empty(parts[context.group.rank()].sizes(), local.options());
  if (dim == 0 && local.size(0) % n == 0) {
    context.group.reduce_scatter(output, local.contiguous(), op, context.name)
        .wait();
  } else {
    context.group.reduce_scatter_uneven(output, parts, op, context.name).wait();
  }
  return output;
}

at::Tensor exchange_dims(
    const at::Tensor& local,
    int64_t from_dim,
    int64_t to_dim,
    const StepContext& context) {
  const int64_t n = context.group.size();
  const auto inputs = split_dim(local, to_dim, n);
  std::vector<at::Tensor> outputs;
  auto sizes = inputs[context.group.rank()].sizes().vec();
  for (int64_t r = 0; r < n; ++r) {
    sizes[from_dim] = shard_range(context.whole, n, r).length;
    outputs.push_back(at::empty(sizes, local.options()));
  }
  context.group.all_to_all(outputs, inputs, context.name).wait();
  return at::cat(outputs, from_dim);
}

// S to P moves nothing: every rank's part in a tensor of zeros.
at::Tensor shard_to_partial(
    const at::Tensor& local,
    int64_t dim,
    ReduceOp op,
    const StepContext& context) {
  TORCH_CHECK_VALUE(
      op == ReduceOp::kSum,
      "[redistribute] S to P(",
      to_string(op),
      ") has no local form. Redistribute to P(sum) or R.");
  auto sizes = local.sizes().vec();
  sizes[dim] = context.whole;
  auto whole = at::zeros(sizes, local.options());
  const auto range =
      shard_range(context.whole, context.group.size(), context.group.rank());
  whole.narrow(dim, range.begin, range.length).copy_(local);
  return whole;
}

// R to P moves nothing: rank 0 keeps the values of a sum, the others hold
// zeros, so that the sum is the value exactly.
at::Tensor to_partial(
    const at::Tensor& local,
    ReduceOp op,
    const mesh::Communicator& group) {
  if (op == ReduceOp::kSum) {
    return group.rank() == 0 ? local : at::zeros_like(local);
  }
  TORCH_CHECK_VALUE(
      op != ReduceOp::kProduct,
      "[redistribute] R to P(product) has no exact form. Redistribute to "
      "P(sum), P(avg), P(min) or P(max) instead.");
  return local;
}

at::Tensor run_step(
    const at::Tensor& local,
    const RedistributeStep& step,
    const StepContext& context) {
  const auto& [mesh_dim, from, to] = step;
  if (from.is_partial()) {
    if (to.is_shard()) {
      return reduce_scatter_dim(
          local, to.tensor_dim(), from.reduce_op(), context);
    }
    auto output = local.clone(at::MemoryFormat::Contiguous);
    context.group.all_reduce(output, from.reduce_op(), context.name).wait();
    return output;
  }
  if (from.is_shard()) {
    if (to.is_partial()) {
      return shard_to_partial(
          local, from.tensor_dim(), to.reduce_op(), context);
    }
    return to.is_shard()
               ? exchange_dims(
                     local, from.tensor_dim(), to.tensor_dim(), context)
               : gather_dim(local, from.tensor_dim(), context);
  }
  if (to.is_shard()) {
    const auto range = shard_range(
        local.size(to.tensor_dim()),
        context.group.size(),
        context.group.rank());
    return local.narrow(to.tensor_dim(), range.begin, range.length)
        .contiguous();
  }
  return to_partial(local, to.reduce_op(), context.group);
}

// The size that `mesh_dim` cuts: what the mesh dims outside it left.
int64_t size_before(
    c10::IntArrayRef global_sizes,
    const mesh::DeviceMesh& mesh,
    const Placements& current,
    int64_t mesh_dim,
    int64_t tensor_dim) {
  int64_t size = global_sizes[tensor_dim];
  for (int64_t i = 0; i < mesh_dim; ++i) {
    if (current[i].is_shard(tensor_dim)) {
      size = shard_range(size, mesh.size(i), mesh.coordinate(i)).length;
    }
  }
  return size;
}

} // namespace

std::vector<RedistributeStep> plan_redistribute(
    const DTensorSpec& from,
    const DTensorSpec& to) {
  std::vector<RedistributeStep> steps;
  Placements current = from.placements();
  const Placements& target = to.placements();
  const auto move = [&](size_t i, Placement placement) {
    steps.push_back({static_cast<int64_t>(i), current[i], placement});
    current[i] = placement;
  };
  for (size_t i = current.size(); i-- > 0;) {
    if (can_go_directly(current, target, i)) {
      move(i, target[i]);
    } else if (current[i].is_shard() && must_gather(current, target, i)) {
      move(i, Replicate());
    }
  }
  for (size_t i = 0; i < current.size(); ++i) {
    if (current[i] == target[i]) {
      continue;
    }
    if (current[i].is_partial() && target[i].is_partial()) {
      move(i, Replicate());
    }
    move(i, target[i]);
  }
  return steps;
}

at::Tensor redistribute_local(
    const at::Tensor& local,
    c10::IntArrayRef global_sizes,
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name) {
  at::Tensor result = local;
  Placements current = from.placements();
  const auto& mesh = from.mesh();
  for (const auto& step : plan_redistribute(from, to)) {
    if (mesh.size(step.mesh_dim) > 1) {
      const int64_t whole = step.from.is_shard() ? size_before(
                                                       global_sizes,
                                                       mesh,
                                                       current,
                                                       step.mesh_dim,
                                                       step.from.tensor_dim())
                                                 : 0;
      result = run_step(result, step, {mesh.group(step.mesh_dim), whole, name});
    }
    current[step.mesh_dim] = step.to;
  }
  return result;
}

double redistribute_cost(
    const Placement& from,
    const Placement& to,
    double bytes,
    int64_t shards) {
  if (from == to) {
    return 0;
  }
  // Latency in units of bytes: a message costs as much as moving this many.
  constexpr double kLatency = 64 * 1024;
  constexpr double kLocal = 1e-3;
  // Only to add in place to a pending sum: elsewhere it would put a reduction
  // off to a place that nobody asked for.
  constexpr double kLastResort = 1e30;
  const double part = bytes / static_cast<double>(shards);
  const double moved = bytes - part;
  if (from.is_partial()) {
    if (to.is_partial()) {
      return std::numeric_limits<double>::infinity();
    }
    return to.is_shard() ? kLatency + moved : 2 * kLatency + 2 * moved;
  }
  if (from.is_shard()) {
    if (to.is_partial()) {
      return to.is_partial(ReduceOp::kSum)
                 ? kLastResort
                 : std::numeric_limits<double>::infinity();
    }
    return to.is_shard() ? kLatency + moved / static_cast<double>(shards)
                         : kLatency + moved;
  }
  // From R: a slice is free but for the copy.
  if (to.is_shard()) {
    return kLocal * (1 + part);
  }
  return to.is_partial(ReduceOp::kSum)
             ? kLastResort
             : std::numeric_limits<double>::infinity();
}

at::Tensor redistribute_dtensor(
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name) {
  const auto* impl = dtensor_impl(dtensor);
  if (impl->spec() == to) {
    return dtensor;
  }
  auto local =
      redistribute_local(impl->local(), impl->sizes(), impl->spec(), to, name);
  return make_dtensor(std::move(local), to, impl->sizes(), impl->strides());
}

} // namespace weft::dtensor
