#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtensor/rules/rule.h"

// Note [Dims by name]
// ~~~~~~~~~~~~~~~~~~~
// Many ops treat some dims one index at a time: batches, channels, the columns
// of a right-hand side. Their rules name the dims of every tensor with one
// letter each, as einsum does: dims of one letter can be cut together, '.' is a
// dim that has to be whole. A tensor without the letter stays whole; an output
// without it is whole too, or, if its names start with '+', a Partial sum.
// "nc", "n", "c" -> "+": cut along n, the whole of the third, a Partial sum.

namespace weft::dtensor::rules {

/// The name of an argument and the names of its dims, one letter each.
using NamedDims = std::vector<std::pair<std::string_view, std::string>>;

/// Returns one strategy per letter, see Note [Dims by name]. Absent arguments
/// are skipped; tensors that are not in `inputs` are replicated.
std::vector<Strategy> cut_named_dims(
    const OpCall& call,
    const NamedDims& inputs,
    const std::vector<std::string>& outputs);

/// Adds strategies for an op that is linear in `inputs` together, so that their
/// sums and averages may stay Partial. Outputs for which `follows` is false do
/// not depend on them.
void add_linear(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    std::initializer_list<std::string_view> inputs,
    std::vector<bool> follows = {});

/// Returns true if the chunk rule gives every rank some of `size` rows for any
/// nesting of mesh dims.
bool fills_all_parts(int64_t size, const StrategyContext& context);

/// For kernels that reject empty local tensors: removes strategies that could
/// leave a rank without rows of an input, and sets chunked_only on the other
/// ones that shard an input.
void keep_filled_cuts(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const StrategyContext& context);

/// Returns the position in the schema, or -1.
int64_t argument_position(const OpCall& call, std::string_view name);
/// Returns the argument, or None if the schema has none of that name.
c10::IValue argument(const OpCall& call, std::string_view name);
/// Returns the tensor argument, or null if it is absent.
const TensorArgument* tensor_argument(
    const OpCall& call,
    std::string_view name);

/// Returns "abc" for 3: every dim can be sharded.
std::string all_dims(int64_t ndim);
/// Returns `names` with '.' at `dim`: this dim must be replicated.
std::string with_full(std::string names, int64_t dim);
/// Returns `names` with the last `count` dims replicated.
std::string with_whole_tail(std::string names, int64_t count);

/// Returns the names of the dims of a tensor of shape `sizes` that is broadcast
/// to the shape `common`, whose dims have the names `names`. Shapes are aligned
/// at the right. A dim of size 1 that is expanded gets the name '.'.
std::string broadcast_dims(
    c10::IntArrayRef sizes,
    c10::IntArrayRef common,
    const std::string& names);
std::vector<int64_t> broadcast_sizes(c10::IntArrayRef a, c10::IntArrayRef b);

/// Row-major strides.
OutputMeta contiguous(std::vector<int64_t> sizes);
/// The order of dims in memory of `input`, without gaps.
OutputMeta like(const TensorArgument& input);
/// Channels last if `input` is, otherwise row-major, as at::empty_like() does
/// for suggest_memory_format().
OutputMeta in_memory_format(const TensorArgument& input);
std::vector<OutputMeta> like_first(const OpCall& call);

/// Returns metadata in which every output is a tensor without dims.
std::vector<OutputMeta> one_number(const OpCall& call);

/// Returns the argument "reduction" of a loss, an at::Reduction.
int64_t loss_reduction(const OpCall& call);

/// Replaces the second argument of an op, which must be the sizes of its
/// result, by the local sizes.
Rule::LocalArguments part_sizes(const LocalCall& local);

} // namespace weft::dtensor::rules
