#include "mesh/exchange.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

namespace weft::mesh {
namespace {

std::vector<int64_t> all_gather_sizes(
    Communicator& group,
    size_t size,
    std::string_view name,
    c10::Device device) {
  const auto input =
      at::full({1}, static_cast<int64_t>(size), at::kLong).to(device);
  const auto output = at::empty({group.size()}, input.options());
  group.all_gather(output, input, name).wait();
  const auto sizes = output.cpu();
  const auto* data = sizes.const_data_ptr<int64_t>();
  return {data, data + sizes.numel()};
}

} // namespace

std::vector<std::string> all_gather_text(
    Communicator& group,
    const std::string& text,
    std::string_view name,
    c10::Device device) {
  if (group.size() == 1 || group.backend() == "fake") {
    return std::vector<std::string>(group.size(), text);
  }
  const auto bytes = at::TensorOptions(at::kByte).device(device);
  std::vector<at::Tensor> outputs;
  for (const int64_t size :
       all_gather_sizes(group, text.size(), name, device)) {
    outputs.push_back(at::empty({size}, bytes));
  }
  const auto input = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), input.mutable_data_ptr<uint8_t>());
  group.all_gather_uneven(outputs, input.to(device), name).wait();
  std::vector<std::string> texts;
  for (const auto& output : outputs) {
    const auto local = output.cpu();
    const auto* data = local.const_data_ptr<uint8_t>();
    texts.emplace_back(data, data + local.numel());
  }
  return texts;
}

} // namespace weft::mesh
