#include "tests/checkpoint/transfer/exchange_state.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <stdexcept>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "checkpoint/format/dtype.h"
#include "dtensor/tensor/dtensor.h"

namespace weft::test {
namespace {

using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;
using dtensor::StridedShard;

std::span<unsigned char> bytes_of(const at::Tensor& tensor) {
  return {static_cast<unsigned char*>(tensor.data_ptr()), tensor.nbytes()};
}

Placements placements_of(const std::string& cut, int64_t tp) {
  const std::map<std::string, Placements> all = {
      {"replicated", {Replicate(), Replicate()}},
      {"rows", {Replicate(), Shard(0)}},
      {"columns", {Replicate(), Shard(1)}},
      {"dp_rows", {Shard(0), Replicate()}},
      {"both", {Shard(0), Shard(1)}},
      {"nested", {Shard(0), Shard(0)}},
      {"strided", {StridedShard(0, tp), Shard(0)}}};
  return all.at(cut);
}

at::Tensor local_part(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return (dtensor::is_dtensor(tensor) ? dtensor::to_local(tensor) : tensor)
      .contiguous();
}

} // namespace

std::vector<ExchangeTensor> exchange_tensors(
    const std::filesystem::path& oracle) {
  std::ifstream file(oracle / "tensors.json");
  if (!file) {
    throw std::runtime_error("no tensors.json in " + oracle.string());
  }
  std::vector<ExchangeTensor> tensors;
  for (const auto& entry : nlohmann::json::parse(file)) {
    ExchangeTensor tensor;
    tensor.name = entry.at("name");
    tensor.dtype =
        checkpoint::from_format_name(entry.at("dtype").get<std::string>())
            .value();
    tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
    tensor.cut = entry.at("cut");
    tensor.values = at::empty(tensor.shape, tensor.dtype);
    size_t k = 0;
    for (auto& byte : bytes_of(tensor.values)) {
      byte =
          static_cast<unsigned char>((7 * k++ + 13 * tensors.size() + 3) % 251);
      byte &= tensor.dtype == at::kBool ? 1U : 255U;
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<ExchangeTensor> consolidable(std::vector<ExchangeTensor> tensors) {
  std::erase_if(tensors, [](const ExchangeTensor& tensor) {
    return !at::isFloatingType(tensor.dtype) || tensor.shape.empty();
  });
  return tensors;
}

std::map<std::string, at::Tensor> exchange_values(
    const std::vector<ExchangeTensor>& tensors) {
  std::map<std::string, at::Tensor> values;
  for (const auto& tensor : tensors) {
    values[tensor.name] = tensor.values;
  }
  return values;
}

checkpoint::StateDicts exchange_state(
    const std::vector<ExchangeTensor>& tensors,
    const mesh::DeviceMesh& mesh,
    bool with_values) {
  checkpoint::StateDicts state;
  for (const auto& tensor : tensors) {
    const auto dot = tensor.name.find('.');
    auto values = tensor.values.clone();
    if (!with_values) {
      std::ranges::fill(bytes_of(values), tensor.dtype == at::kBool ? 1 : 255);
    }
    auto& entry =
        state[tensor.name.substr(0, dot)][tensor.name.substr(dot + 1)];
    entry = tensor.cut == "none" ? values
                                 : dtensor::distribute_tensor(
                                       values,
                                       mesh,
                                       placements_of(tensor.cut, mesh.size(1)),
                                       /*src_data_rank=*/std::nullopt);
  }
  return state;
}

std::vector<std::string> differing_parts(
    const checkpoint::StateDicts& a,
    const checkpoint::StateDicts& b) {
  std::vector<std::string> names;
  for (const auto& [part, dict] : a) {
    for (const auto& [name, tensor] : dict) {
      const auto left = local_part(tensor);
      const auto right = local_part(b.at(part).at(name));
      if (left.sizes() != right.sizes() ||
          left.scalar_type() != right.scalar_type() ||
          !std::ranges::equal(bytes_of(left), bytes_of(right))) {
        names.push_back(part + "." + name);
      }
    }
  }
  return names;
}

} // namespace weft::test
