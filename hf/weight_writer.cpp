#include "hf/weight_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/weight_index.h"
#include "mesh/error/error.h"

namespace weft::hf {
namespace {

std::string header_of(const std::vector<Planned>& tensors) {
  nlohmann::ordered_json json;
  json["__metadata__"] = {{"format", "pt"}};
  int64_t position = 0;
  for (const auto& tensor : tensors) {
    const auto end = position + tensor.bytes();
    json[tensor.name] = {
        {"dtype", checkpoint::format_name(tensor.dtype)},
        {"shape", tensor.shape},
        {"data_offsets", {position, end}}};
    position = end;
  }
  auto text = base::strict_json_text(json);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string bytes(sizeof(uint64_t), '\0');
  const auto length = static_cast<uint64_t>(text.size());
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + text;
}

void write_all(
    const checkpoint::File& file,
    int64_t offset,
    std::span<const std::byte> bytes) {
  const std::array parts{bytes};
  file.write_at(offset, parts);
}

} // namespace

int64_t Planned::bytes() const {
  return std::accumulate(
      shape.begin(),
      shape.end(),
      static_cast<int64_t>(c10::elementSize(dtype)),
      std::multiplies<>());
}

WeightWriter::WeightWriter(
    const checkpoint::Folder& folder,
    const std::string& name,
    const std::vector<Planned>& tensors)
    : file_(folder.create_file(name)) {
  const auto header = header_of(tensors);
  write_all(file_, 0, std::as_bytes(std::span(header)));
  position_ = std::ssize(header);
  end_ = position_;
  for (const auto& tensor : tensors) {
    end_ += tensor.bytes();
  }
}

void WeightWriter::append(const at::Tensor& block) {
  TORCH_INTERNAL_ASSERT(block.is_contiguous() && block.device().is_cpu());
  write_all(
      file_,
      position_,
      {static_cast<const std::byte*>(block.const_data_ptr()), block.nbytes()});
  position_ += static_cast<int64_t>(block.nbytes());
}

void WeightWriter::finish() {
  TORCH_INTERNAL_ASSERT(position_ == end_, position_, " of ", end_);
  file_.sync();
  file_.close();
}

at::Tensor rounded_for_export(
    const at::Tensor& block,
    at::ScalarType dtype,
    const checkpoint::TensorPlace& place) {
  try {
    return checkpoint::round_to(block, dtype, place);
  } catch (const c10::ValueError& error) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "export: {} Give one of them with --dtype.",
        error.what_without_backtrace()));
  }
}

std::vector<std::vector<Planned>> plan_shards(
    std::vector<Planned> tensors,
    int64_t max_bytes) {
  std::ranges::stable_sort(tensors, std::greater<>(), [](const Planned& each) {
    return c10::elementSize(each.dtype);
  });
  std::vector<std::vector<Planned>> shards(1);
  int64_t bytes = 0;
  for (auto& tensor : tensors) {
    if (!shards.back().empty() && bytes + tensor.bytes() > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

std::string shard_name(size_t index, size_t count) {
  return count == 1 ? "model.safetensors"
                    : fmt::format(
                          "model-{:05}-of-{:05}.safetensors", index + 1, count);
}

void write_shard_index(
    const checkpoint::Folder& folder,
    const std::vector<std::vector<Planned>>& shards) {
  if (shards.size() == 1) {
    return;
  }
  auto files = nlohmann::ordered_json::object();
  int64_t bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const auto& tensor : shards[i]) {
      files[tensor.name] = shard_name(i, shards.size());
      bytes += tensor.bytes();
    }
  }
  const nlohmann::ordered_json index{
      {"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(files)}};
  write_small_file(
      folder,
      checkpoint::kWeightIndexName,
      base::strict_json_text(index, 2) + "\n");
}

void write_small_file(
    const checkpoint::Folder& folder,
    const std::string& name,
    const std::string& text) {
  auto file = folder.create_file(name);
  write_all(file, 0, std::as_bytes(std::span(text)));
  file.sync();
  file.close();
}

} // namespace weft::hf
