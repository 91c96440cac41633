#include "dtensor/rules/named_dims.h"

#include <algorithm>
#include <set>

namespace weft::dtensor::rules {
namespace {

Placement cut_at(const std::string& names, char letter) {
  const auto at = names.find(letter);
  if (at != std::string::npos) {
    return Shard(static_cast<int64_t>(at));
  }
  return Replicate();
}

Placement output_cut_at(const std::string& names, char letter) {
  if (names.starts_with('+')) {
    const auto placement = cut_at(names.substr(1), letter);
    return placement.is_shard() ? placement : Partial();
  }
  return cut_at(names, letter);
}

} // namespace

std::vector<Strategy> cut_named_dims(
    const OpCall& call,
    const NamedDims& inputs,
    const std::vector<std::string>& outputs) {
  std::vector<std::string> names(call.tensors.size());
  std::set<char> letters;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto& argument =
        call.op.schema().arguments()[call.tensors[i].argument].name();
    for (const auto& [name, dims] : inputs) {
      if (name == argument) {
        names[i] = dims;
        letters.insert(dims.begin(), dims.end());
      }
    }
  }
  letters.erase('.');
  std::vector<Strategy> strategies;
  for (const char letter : letters) {
    auto& strategy = strategies.emplace_back();
    for (const auto& dims : outputs) {
      strategy.outputs.push_back(output_cut_at(dims, letter));
    }
    for (const auto& dims : names) {
      strategy.inputs.push_back(cut_at(dims, letter));
    }
  }
  return strategies;
}

void add_linear(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    std::initializer_list<std::string_view> inputs,
    std::vector<bool> follows) {
  Strategy sum{{}, Placements(call.tensors.size(), Replicate())};
  bool any = false;
  bool exact = true;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& tensor = call.tensors[i];
    const auto& name = call.op.schema().arguments()[tensor.argument].name();
    if (std::ranges::find(inputs, name) != inputs.end()) {
      sum.inputs[i] = Partial();
      any = true;
      exact &= tensor.tensor.is_floating_point() || tensor.tensor.is_complex();
    }
  }
  if (!any || !exact) {
    return;
  }
  if (follows.empty()) {
    follows = {true};
  }
  for (const bool follow : follows) {
    sum.outputs.push_back(follow ? Partial() : Replicate());
  }
  auto average = sum;
  for (auto* placements : {&average.outputs, &average.inputs}) {
    for (auto& placement : *placements) {
      if (placement.is_partial()) {
        placement = Partial(ReduceOp::kAvg);
      }
    }
  }
  strategies.push_back(std::move(sum));
  strategies.push_back(std::move(average));
}

// Nested shards leave the last rank at least as many rows as one shard over all
// ranks does.
bool fills_all_parts(int64_t size, const StrategyContext& context) {
  const int64_t chunk = (size + context.all_shards - 1) / context.all_shards;
  return (context.all_shards - 1) * chunk < size;
}

void keep_filled_cuts(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const StrategyContext& context) {
  std::erase_if(strategies, [&](Strategy& strategy) {
    for (size_t i = 0; i < strategy.inputs.size(); ++i) {
      const auto& placement = strategy.inputs[i];
      if (placement.is_shard()) {
        strategy.chunked_only = true;
        const int64_t size = call.tensors[i].sizes()[placement.tensor_dim()];
        if (!fills_all_parts(size, context)) {
          return true;
        }
      }
    }
    return false;
  });
}

int64_t argument_position(const OpCall& call, std::string_view name) {
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

c10::IValue argument(const OpCall& call, std::string_view name) {
  const int64_t position = rules::argument_position(call, name);
  return position < 0 ? c10::IValue() : call.arguments[position];
}

const TensorArgument* tensor_argument(
    const OpCall& call,
    std::string_view name) {
  const int64_t position = rules::argument_position(call, name);
  for (const auto& tensor : call.tensors) {
    if (static_cast<int64_t>(tensor.argument) == position) {
      return &tensor;
    }
  }
  return nullptr;
}

std::string all_dims(int64_t ndim) {
  std::string names;
  for (int64_t d = 0; d < ndim; ++d) {
    names += static_cast<char>('a' + d);
  }
  return names;
}

std::string with_full(std::string names, int64_t dim) {
  if (dim >= 0 && dim < static_cast<int64_t>(names.size())) {
    names[dim] = '.';
  }
  return names;
}

std::string with_whole_tail(std::string names, int64_t count) {
  const auto ndim = static_cast<int64_t>(names.size());
  for (int64_t d = std::max<int64_t>(0, ndim - count); d < ndim; ++d) {
    names[d] = '.';
  }
  return names;
}

std::string broadcast_dims(
    c10::IntArrayRef sizes,
    c10::IntArrayRef common,
    const std::string& names) {
  const size_t missing = common.size() - sizes.size();
  std::string own = names.substr(missing);
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1 && common[missing + d] != 1) {
      own[d] = '.';
    }
  }
  return own;
}

std::vector<int64_t> broadcast_sizes(c10::IntArrayRef a, c10::IntArrayRef b) {
  std::vector<int64_t> sizes(std::max(a.size(), b.size()), 1);
  for (const auto& from : {a, b}) {
    const size_t missing = sizes.size() - from.size();
    for (size_t d = 0; d < from.size(); ++d) {
      if (from[d] != 1) {
        sizes[missing + d] = from[d];
      }
    }
  }
  return sizes;
}

OutputMeta contiguous(std::vector<int64_t> sizes) {
  auto strides = row_major_strides(sizes);
  return {std::move(sizes), std::move(strides)};
}

OutputMeta like(const TensorArgument& input) {
  return {
      input.sizes().vec(),
      dense_strides(input.sizes(), input.tensor.strides())};
}

OutputMeta in_memory_format(const TensorArgument& input) {
  auto sizes = input.sizes().vec();
  switch (input.tensor.suggest_memory_format()) {
    case at::MemoryFormat::ChannelsLast:
      return {sizes, c10::get_channels_last_strides_2d(sizes)};
    case at::MemoryFormat::ChannelsLast3d:
      return {sizes, c10::get_channels_last_strides_3d(sizes)};
    default:
      return contiguous(std::move(sizes));
  }
}

std::vector<OutputMeta> like_first(const OpCall& call) {
  return {call.op.schema().returns().size(), like(call.tensors[0])};
}

std::vector<OutputMeta> one_number(const OpCall& call) {
  return {call.op.schema().returns().size(), OutputMeta{}};
}

int64_t loss_reduction(const OpCall& call) {
  return argument(call, "reduction").toInt();
}

Rule::LocalArguments part_sizes(const LocalCall& local) {
  return {{1, local.outputs.at(0).sizes}};
}

} // namespace weft::dtensor::rules
