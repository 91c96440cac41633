#include "dtensor/redistribute.h"

#include <algorithm>
#include <string>

#include <torch/torch.h>

#include "dtensor/cut.h"
#include "dtensor/dtensor_impl.h"
#include "mesh/communicator.h"
#include "mesh/error.h"

namespace weft::dtensor {
namespace {

struct StepContext {
  mesh::Communicator& group;
  std::string_view name;
};

// A cut and what it cuts.
struct CutOf {
  DimCut cut;
  int64_t tensor_dim;
  /// What the cuts before left.
  int64_t size;

  int64_t length(int64_t index) const { return cut_length(cut, size, index); }
  bool is_even() const {
    return cut.sizes.empty() && size % (cut.shards * cut.split_factor) == 0;
  }
};

// The parts of `whole` that rank `index` holds under a cut of chunks: those of
// all full chunks, which are of one length, as one view with a dim more, and
// that of the last one.
std::vector<at::Tensor>
chunk_views(const at::Tensor& whole, const CutOf& of, int64_t index) {
  const int64_t dim = of.tensor_dim;
  const int64_t chunk = shard_range(of.size, of.cut.split_factor, 0).length;
  if (chunk == 0) {
    return {};
  }
  const int64_t full = of.size / chunk;
  const int64_t rest = of.size - full * chunk;
  const auto part = shard_range(chunk, of.cut.shards, index);
  const auto last = shard_range(rest, of.cut.shards, index);
  return {
      whole.narrow(dim, 0, full * chunk)
          .unflatten(dim, {full, chunk})
          .narrow(dim + 1, part.begin, part.length),
      whole.narrow(dim, full * chunk + last.begin, last.length)};
}

// The same rows of the part itself.
std::vector<at::Tensor>
packed_views(const at::Tensor& part, const CutOf& of, int64_t index) {
  const int64_t dim = of.tensor_dim;
  const int64_t chunk = shard_range(of.size, of.cut.split_factor, 0).length;
  if (chunk == 0) {
    return {};
  }
  const int64_t full = of.size / chunk;
  const int64_t length = shard_range(chunk, of.cut.shards, index).length;
  return {
      part.narrow(dim, 0, full * length).unflatten(dim, {full, length}),
      part.narrow(dim, full * length, part.size(dim) - full * length)};
}

void copy_views(
    const std::vector<at::Tensor>& to,
    const std::vector<at::Tensor>& from) {
  for (size_t i = 0; i < to.size(); ++i) {
    to[i].copy_(from[i]);
  }
}

// A view where the part is one range.
at::Tensor part_of(const at::Tensor& whole, const CutOf& of, int64_t index) {
  if (of.cut.split_factor == 1) {
    const auto range = cut_ranges(of.cut, of.size, index)[0];
    return whole.narrow(of.tensor_dim, range.begin, range.length);
  }
  auto sizes = whole.sizes().vec();
  sizes[of.tensor_dim] = of.length(index);
  auto part = at::empty(sizes, whole.options());
  copy_views(packed_views(part, of, index), chunk_views(whole, of, index));
  return part;
}

std::vector<at::Tensor> split(const at::Tensor& whole, const CutOf& of) {
  std::vector<at::Tensor> parts;
  for (int64_t r = 0; r < of.cut.shards; ++r) {
    parts.push_back(part_of(whole, of, r));
  }
  return parts;
}

// Writes a part to where it lies in `whole`.
void put_part(
    const at::Tensor& whole,
    const at::Tensor& part,
    const CutOf& of,
    int64_t index) {
  if (of.cut.split_factor == 1) {
    part_of(whole, of, index).copy_(part);
  } else {
    copy_views(chunk_views(whole, of, index), packed_views(part, of, index));
  }
}

at::Tensor join(const std::vector<at::Tensor>& parts, const CutOf& of) {
  if (of.cut.split_factor == 1) {
    return at::cat(parts, of.tensor_dim);
  }
  auto sizes = parts[0].sizes().vec();
  sizes[of.tensor_dim] = of.size;
  auto whole = at::empty(sizes, parts[0].options());
  for (int64_t r = 0; r < of.cut.shards; ++r) {
    put_part(whole, parts[r], of, r);
  }
  return whole;
}

at::Tensor
gather(const at::Tensor& local, const CutOf& of, const StepContext& context) {
  const int64_t n = of.cut.shards;
  auto sizes = local.sizes().vec();
  if (of.is_even() && of.tensor_dim == 0 && of.cut.split_factor == 1) {
    sizes[0] = of.size;
    auto output = at::empty(sizes, local.options());
    context.group.all_gather(output, local.contiguous(), context.name).wait();
    return output;
  }
  if (of.is_even()) {
    sizes.insert(sizes.begin(), n);
    auto buffer = at::empty(sizes, local.options());
    context.group.all_gather(buffer, local.contiguous(), context.name).wait();
    return join(buffer.unbind(0), of);
  }
  std::vector<at::Tensor> parts;
  for (int64_t r = 0; r < n; ++r) {
    sizes[of.tensor_dim] = of.length(r);
    parts.push_back(at::empty(sizes, local.options()));
  }
  context.group.all_gather_uneven(parts, local.contiguous(), context.name)
      .wait();
  return join(parts, of);
}

at::Tensor reduce_scatter(
    const at::Tensor& local,
    const CutOf& of,
    ReduceOp op,
    const StepContext& context) {
  auto sizes = local.sizes().vec();
  sizes[of.tensor_dim] = of.length(context.group.rank());
  auto output = at::empty(sizes, local.options());
  if (of.is_even() && of.tensor_dim == 0 && of.cut.split_factor == 1) {
    context.group.reduce_scatter(output, local.contiguous(), op, context.name)
        .wait();
  } else {
    context.group
        .reduce_scatter_uneven(output, split(local, of), op, context.name)
        .wait();
  }
  return output;
}

at::Tensor exchange_dims(
    const at::Tensor& local,
    const CutOf& from,
    const CutOf& to,
    const StepContext& context) {
  const auto inputs = split(local, to);
  std::vector<at::Tensor> outputs;
  auto sizes = inputs[context.group.rank()].sizes().vec();
  for (int64_t r = 0; r < from.cut.shards; ++r) {
    sizes[from.tensor_dim] = from.length(r);
    outputs.push_back(at::empty(sizes, local.options()));
  }
  context.group.all_to_all(outputs, inputs, context.name).wait();
  return join(outputs, from);
}

// The rows that rank `a` of one cut and rank `b` of another both hold.
RowRange common_rows(const CutOf& x, int64_t a, const CutOf& y, int64_t b) {
  const auto own = cut_ranges(x.cut, x.size, a)[0];
  const auto other = cut_ranges(y.cut, y.size, b)[0];
  const int64_t begin = std::max(own.begin, other.begin);
  const int64_t end =
      std::min(own.begin + own.length, other.begin + other.length);
  return {begin, std::max<int64_t>(end - begin, 0)};
}

// Other sizes of one dim's shards: each rank sends what it no longer holds.
at::Tensor exchange_rows(
    const at::Tensor& local,
    const CutOf& from,
    const CutOf& to,
    const StepContext& context) {
  const int64_t rank = context.group.rank();
  const int64_t begin = cut_ranges(from.cut, from.size, rank)[0].begin;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  auto sizes = local.sizes().vec();
  for (int64_t r = 0; r < from.cut.shards; ++r) {
    const auto sent = common_rows(from, rank, to, r);
    inputs.push_back(
        sent.length == 0
            ? local.narrow(from.tensor_dim, 0, 0)
            : local.narrow(from.tensor_dim, sent.begin - begin, sent.length));
    sizes[from.tensor_dim] = common_rows(from, r, to, rank).length;
    outputs.push_back(at::empty(sizes, local.options()));
  }
  context.group.all_to_all(outputs, inputs, context.name).wait();
  return at::cat(outputs, from.tensor_dim);
}

// S to P(sum) moves nothing: every rank's part in a tensor of zeros.
at::Tensor
shard_to_partial(const at::Tensor& local, const CutOf& of, int64_t rank) {
  auto sizes = local.sizes().vec();
  sizes[of.tensor_dim] = of.size;
  auto whole = at::zeros(sizes, local.options());
  put_part(whole, local, of, rank);
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
  check_partial_form(op, local.scalar_type());
  return local;
}

// One step on this rank, with the cuts before it.
class Step {
 public:
  Step(
      const RedistributeStep& step,
      const Placements& current,
      const mesh::DeviceMesh& mesh,
      c10::IntArrayRef global_sizes,
      std::string_view name)
      : step_(step),
        current_(current),
        mesh_(mesh),
        global_sizes_(global_sizes),
        context_{mesh.group(step.mesh_dim), name} {}

  at::Tensor run(const at::Tensor& local) const {
    const auto& [mesh_dim, from, to] = step_;
    if (from.is_partial()) {
      return run_partial(local);
    }
    if (from.is_shard()) {
      return run_shard(local);
    }
    return to.is_shard()
               ? part_of(local, cut_by(to), context_.group.rank()).contiguous()
               : to_partial(local, to.reduce_op(), context_.group);
  }

 private:
  at::Tensor run_partial(const at::Tensor& local) const {
    const auto op = step_.from.reduce_op();
    if (step_.to.is_shard()) {
      return reduce_scatter(local, cut_by(step_.to), op, context_);
    }
    auto output = local.clone(at::MemoryFormat::Contiguous);
    context_.group.all_reduce(output, op, context_.name).wait();
    return output;
  }

  at::Tensor run_shard(const at::Tensor& local) const {
    if (changes_name_only()) {
      return local;
    }
    const auto from = cut_by(step_.from);
    if (step_.to.is_partial()) {
      return shard_to_partial(local, from, context_.group.rank());
    }
    if (!step_.to.is_shard()) {
      return gather(local, from, context_);
    }
    const auto to = cut_by(step_.to);
    if (from.tensor_dim != to.tensor_dim) {
      return exchange_dims(local, from, to, context_);
    }
    return exchange_rows(local, from, to, context_);
  }

  // The mesh dim's cut under `placement`, which is its dim's last.
  CutOf cut_by(const Placement& placement) const {
    const int64_t dim = placement.tensor_dim();
    Placements placements = current_;
    placements[step_.mesh_dim] = placement;
    const auto cuts = cuts_of(placements, mesh_.shape(), dim);
    TORCH_INTERNAL_ASSERT(
        !cuts.empty() && cuts.back().mesh_dim == step_.mesh_dim);
    int64_t size = global_sizes_[dim];
    for (const auto& cut : cuts) {
      if (cut.mesh_dim != step_.mesh_dim) {
        size = cut_length(cut, size, mesh_.coordinate(cut.mesh_dim));
      }
    }
    return {cuts.back(), dim, size};
  }

  // Two placements that mean one cut, e.g. S(0) and _S(0, 1).
  bool changes_name_only() const {
    const int64_t dim = step_.from.tensor_dim();
    Placements placements = current_;
    placements[step_.mesh_dim] = step_.to;
    return step_.to.is_shard(dim) && cuts_of(placements, mesh_.shape(), dim) ==
                                         cuts_of(current_, mesh_.shape(), dim);
  }

  const RedistributeStep& step_;
  const Placements& current_;
  const mesh::DeviceMesh& mesh_;
  c10::IntArrayRef global_sizes_;
  StepContext context_;
};

} // namespace

void check_partial_form(ReduceOp op, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(
      op != ReduceOp::kAvg || at::isFloatingType(dtype) ||
          at::isComplexType(dtype),
      "[redistribute] R to P(avg) of ",
      dtype,
      ": an average of whole numbers is none. Redistribute to P(sum).");
  TORCH_CHECK_VALUE(
      op != ReduceOp::kProduct,
      "[redistribute] R to P(product) has no exact form. Redistribute to "
      "P(sum), P(avg), P(min) or P(max) instead.");
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
      result = Step(step, current, mesh, global_sizes, name).run(result);
    }
    current[step.mesh_dim] = step.to;
  }
  return result;
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
