#include "dtensor/rules/view_dims.h"

namespace weft::dtensor::rules {
namespace {

// Returns the dim of a run that can be sharded: the first one with more than
// one row, or the only one. Returns -1 if there is none.
int64_t leading(c10::IntArrayRef sizes, const std::vector<int64_t>& run) {
  for (const int64_t dim : run) {
    if (sizes[dim] != 1 || run.size() == 1) {
      return dim;
    }
  }
  return -1;
}

} // namespace

ViewDims kept_dims(int64_t ndim) {
  ViewDims dims;
  for (int64_t d = 0; d < ndim; ++d) {
    dims.push_back({{d}});
  }
  return dims;
}

ViewDims without_dim(int64_t ndim, int64_t removed) {
  auto dims = kept_dims(ndim);
  dims.erase(dims.begin() + removed);
  return dims;
}

// Walks both shapes and closes a run wherever the products are equal.
ViewDims reshaped_dims(c10::IntArrayRef from, c10::IntArrayRef to) {
  ViewDims dims(to.size());
  if (c10::multiply_integers(from) == 0) {
    return dims;
  }
  size_t i = 0;
  size_t j = 0;
  while (i < from.size() && j < to.size()) {
    const size_t first = j;
    ViewDim run{{static_cast<int64_t>(i)}};
    int64_t left = from[i++];
    int64_t right = to[j++];
    while (left != right) {
      if (left < right) {
        run.inputs.push_back(static_cast<int64_t>(i));
        left *= from[i++];
      } else {
        right *= to[j++];
      }
    }
    for (size_t k = first; k < j; ++k) {
      dims[k] = run;
      run.outer *= to[k];
    }
  }
  return dims;
}

bool same_sharding(
    int64_t from,
    int64_t to,
    const OpCall& call,
    const StrategyContext& context) {
  if (from % context.all_shards == 0 && to % context.all_shards == 0) {
    return true;
  }
  if (call.mesh().ndim() != 1) {
    return false;
  }
  for (int64_t i = 0; i < context.shards; ++i) {
    const auto a = shard_range(from, context.shards, i);
    const auto b = shard_range(to, context.shards, i);
    if (a.begin * to != b.begin * from || a.length * to != b.length * from) {
      return false;
    }
  }
  return true;
}

std::vector<Strategy> follow_dims(
    const OpCall& call,
    const StrategyContext& context,
    c10::IntArrayRef from,
    c10::IntArrayRef to,
    const ViewDims& dims) {
  std::vector<Strategy> strategies;
  for (size_t j = 0; j < dims.size(); ++j) {
    const int64_t dim = leading(from, dims[j].inputs);
    if (dim < 0 || dims[j].outer != 1) {
      continue;
    }
    const bool equal = from[dim] == to[j];
    if (equal || same_sharding(from[dim], to[j], call, context)) {
      strategies.push_back(
          {{Shard(static_cast<int64_t>(j))}, {Shard(dim)}, !equal});
    }
  }
  return strategies;
}

} // namespace weft::dtensor::rules
