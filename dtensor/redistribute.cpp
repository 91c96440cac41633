#include "dtensor/redistribute.h"

#include <algorithm>
#include <optional>

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

// One step on this rank: the cut that it undoes and the one that it makes.
struct LocalStep {
  const RedistributeStep& step;
  std::optional<CutOf> from;
  std::optional<CutOf> to;
  StepContext context;
};

// The cut of `mesh_dim`, which is the last of its tensor dim.
std::optional<CutOf> last_cut(
    const Placements& current,
    int64_t mesh_dim,
    const mesh::DeviceMesh& mesh,
    c10::IntArrayRef global_sizes) {
  if (!current[mesh_dim].is_shard()) {
    return std::nullopt;
  }
  const int64_t dim = current[mesh_dim].tensor_dim();
  const auto cuts = cuts_of(current, mesh.shape(), dim);
  TORCH_INTERNAL_ASSERT(!cuts.empty() && cuts.back().mesh_dim == mesh_dim);
  int64_t size = global_sizes[dim];
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    size = cut_length(cuts[i], size, mesh.coordinate(cuts[i].mesh_dim));
  }
  return CutOf{cuts.back(), dim, size};
}

at::Tensor run_partial(const at::Tensor& local, const LocalStep& local_step) {
  const auto op = local_step.step.from.reduce_op();
  const auto& context = local_step.context;
  if (local_step.to) {
    return reduce_scatter(local, *local_step.to, op, context);
  }
  if (local_step.step.to.is_partial()) {
    // P(avg) to P(sum) moves nothing.
    check_partial_form(op, local.scalar_type());
    return local / context.group.size();
  }
  auto output = local.clone(at::MemoryFormat::Contiguous);
  context.group.all_reduce(output, op, context.name).wait();
  return output;
}

at::Tensor run_shard(const at::Tensor& local, const LocalStep& local_step) {
  const auto& [step, from, to, context] = local_step;
  if (step.to.is_partial()) {
    return shard_to_partial(local, *from, context.group.rank());
  }
  if (!to) {
    return gather(local, *from, context);
  }
  return from->tensor_dim == to->tensor_dim
             ? exchange_rows(local, *from, *to, context)
             : exchange_dims(local, *from, *to, context);
}

at::Tensor run_step(const at::Tensor& local, const LocalStep& local_step) {
  const auto& [step, from, to, context] = local_step;
  if (step.from.is_partial()) {
    return run_partial(local, local_step);
  }
  if (from) {
    return run_shard(local, local_step);
  }
  return to ? part_of(local, *to, context.group.rank()).contiguous()
            : to_partial(local, step.to.reduce_op(), context.group);
}

// Two placements that mean one cut, e.g. S(0) and _S(0, 1).
bool changes_name_only(
    const RedistributeStep& step,
    const Placements& current,
    c10::IntArrayRef shape) {
  const int64_t dim = step.from.tensor_dim();
  if (!step.from.is_shard() || !step.to.is_shard(dim)) {
    return false;
  }
  Placements changed = current;
  changed[step.mesh_dim] = step.to;
  return cuts_of(current, shape, dim) == cuts_of(changed, shape, dim);
}

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
    const int64_t i = step.mesh_dim;
    const bool moves =
        mesh.size(i) > 1 && !changes_name_only(step, current, mesh.shape());
    LocalStep local_step{step, {}, {}, {mesh.group(i), name}};
    if (moves) {
      local_step.from = last_cut(current, i, mesh, global_sizes);
    }
    current[i] = step.to;
    if (moves) {
      local_step.to = last_cut(current, i, mesh, global_sizes);
      result = run_step(result, local_step);
    }
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
