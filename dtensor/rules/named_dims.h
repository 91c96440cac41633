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
// without it is whole too, or, if its names start with '+', a pending sum.
// "nc", "n", "c" -> "+": cut along n, the whole of the third, a pending sum.

namespace weft::dtensor::rules {

/// An argument's name and the names of its dims.
using NamedDims = std::vector<std::pair<std::string_view, std::string>>;

/// One strategy a letter, see Note [Dims by name]. Arguments that are absent
/// are left out; tensors that `inputs` does not speak of stay whole.
std::vector<Strategy> cut_named_dims(
    const OpCall& call,
    const NamedDims& inputs,
    const std::vector<std::string>& outputs);

/// The op is linear in `inputs`, taken together: their pending sums and
/// averages may wait. Outputs where `follows` is false do not depend on them.
void add_linear(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    std::initializer_list<std::string_view> inputs,
    std::vector<bool> follows = {});

/// Whether the chunk rule gives every rank some of `size` rows, however mesh
/// dims are nested.
bool fills_all_parts(int64_t size, const StrategyContext& context);

/// For kernels that refuse a part of no elements: drops strategies that could
/// have one, and marks the others as chunked_only.
void keep_filled_cuts(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const StrategyContext& context);

/// Position in the schema, or -1.
int64_t argument_position(const OpCall& call, std::string_view name);
/// The argument, or None where the schema has no such one.
c10::IValue argument(const OpCall& call, std::string_view name);
/// The tensor argument, or null if it is absent.
const TensorArgument* tensor_argument(
    const OpCall& call,
    std::string_view name);

/// "abc" for 3: each dim can be cut.
std::string all_dims(int64_t ndim);
/// `names` with a dim that has to be whole.
std::string with_full(std::string names, int64_t dim);
/// The `count` last dims whole.
std::string with_whole_tail(std::string names, int64_t count);

/// Names of a tensor's dims that are broadcast, from the right, to the dims
/// `common` of names `names`: '.' where the tensor has 1 and the result not.
std::string broadcast_dims(
    c10::IntArrayRef sizes,
    c10::IntArrayRef common,
    const std::string& names);
std::vector<int64_t> broadcast_sizes(c10::IntArrayRef a, c10::IntArrayRef b);

/// Row-major in memory.
OutputMeta contiguous(std::vector<int64_t> sizes);
/// Dims in memory in `input`'s order, without gaps.
OutputMeta like(const TensorArgument& input);
/// Channels last if `input` is so, else row-major: what at::empty_like() makes
/// of suggest_memory_format().
OutputMeta in_memory_format(const TensorArgument& input);
std::vector<OutputMeta> like_first(const OpCall& call);

/// Every output one number, of no dims.
std::vector<OutputMeta> one_number(const OpCall& call);

/// A loss's argument "reduction", an at::Reduction.
int64_t loss_reduction(const OpCall& call);

/// For ops whose second argument is the result's sizes: those of the part.
Rule::LocalArguments part_sizes(const LocalCall& local);

} // namespace weft::dtensor::rules
