#include "dtensor/rules/memory_format.h"

#include <ATen/ops/empty_strided.h>

#include "dtensor/rules/named_dims.h"

namespace weft::dtensor::rules {

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
