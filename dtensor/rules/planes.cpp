#include "dtensor/rules/planes.h"

#include <ATen/ops/empty_strided.h>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"

namespace weft::dtensor::rules {

int64_t plane_dims(const OpCall& call) {
  const auto name = call.name();
  for (int64_t dims = 1; dims < 4; ++dims) {
    if (name.find(std::to_string(dims) + "d") != std::string_view::npos) {
      return dims;
    }
  }
  return 2;
}

std::vector<Strategy> cut_planes(
    const OpCall& call,
    const StrategyContext& context,
    std::initializer_list<std::string_view> inputs,
    int64_t outputs) {
  const auto& first = call.tensors[0];
  const int64_t channel = first.dim() - plane_dims(call) - 1;
  if (channel < 0 || channel > 1) {
    return {};
  }
  std::string names = channel == 1 ? "n" : "";
  names += never_empty(first.sizes()[channel], call, context) ? 'c' : '.';
  NamedDims named;
  for (const auto& input : inputs) {
    named.emplace_back(input, names);
  }
  auto strategies =
      cut_named_dims(call, named, std::vector<std::string>(outputs, names));
  for (auto& strategy : strategies) {
    strategy.chunked_only = strategy.inputs[0] == Shard(channel);
  }
  return strategies;
}

bool has_channels_last(const TensorArgument& argument) {
  const auto meta = at::empty_strided(
      argument.sizes(),
      argument.tensor.strides(),
      at::TensorOptions(at::kFloat).device(at::kMeta));
  const auto format = meta.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast ||
         format == at::MemoryFormat::ChannelsLast3d;
}

OutputMeta laid_out(std::vector<int64_t> sizes, bool channels_last) {
  auto meta = contiguous(std::move(sizes));
  if (channels_last) {
    const int64_t channels = meta.sizes[1];
    for (size_t d = 2; d < meta.strides.size(); ++d) {
      meta.strides[d] *= channels;
    }
    meta.strides[1] = 1;
  }
  return meta;
}

} // namespace weft::dtensor::rules
