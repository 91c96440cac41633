#include "checkpoint/format/tensor_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

static_assert(
    std::endian::native == std::endian::little,
    "the format is little-endian");

using Entry = std::pair<const std::string, HeaderTensor>;

// Returns the entries with the largest elements first, so that each tensor is
// aligned.
std::vector<Entry*> in_file_order(TensorHeader& header) {
  std::vector<Entry*> order;
  for (auto& entry : header.tensors) {
    order.push_back(&entry);
  }
  std::ranges::stable_sort(order, std::greater<>(), [](const Entry* entry) {
    return c10::elementSize(entry->second.dtype);
  });
  return order;
}

std::string sharding_info(const std::vector<Entry*>& order) {
  std::string text = "{";
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    text += fmt::format(
        R"({}{}:{{"saved_offsets":{},"global_shape":{}}})",
        text.size() == 1 ? "" : ",",
        json_string(name),
        to_text(tensor.offset.value()),
        to_text(tensor.global_shape.value()));
  }
  return text += "}";
}

void check_entry(const std::string& name, const HeaderTensor& tensor) {
  std::string why;
  const auto dims = static_cast<int64_t>(tensor.shape.size());
  if (!is_tensor_name(name, why)) {
    mesh::throw_error<mesh::UsageError>("[checkpoint] " + why);
  }
  if (dims > limits::kDims) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "[checkpoint] tensor {} has {} dims, but at most {} are allowed",
        in_quotes(name),
        dims,
        limits::kDims));
  }
}

} // namespace

std::string make_header(TensorHeader& header) {
  const auto order = in_file_order(header);
  std::string json = R"({"__metadata__":{"format":"pt","DCP_VERSION":"1.0")";
  for (const auto& [key, value] : header.metadata) {
    json += fmt::format(",{}:{}", json_string(key), json_string(value));
  }
  json += fmt::format(
      R"(,"DCP_SHARDING_INFO":{}}})", json_string(sharding_info(order)));
  int64_t position = 0;
  for (auto* entry : order) {
    auto& [name, tensor] = *entry;
    check_entry(name, tensor);
    tensor.begin = position;
    position += element_count(tensor.shape) *
                static_cast<int64_t>(c10::elementSize(tensor.dtype));
    tensor.end = position;
    json += fmt::format(
        R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
        json_string(name),
        format_name(tensor.dtype),
        to_text(tensor.shape),
        tensor.begin,
        tensor.end);
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const auto size = static_cast<int64_t>(json.size());
  if (size > limits::kHeaderBytes) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "[checkpoint] the header of a file with {} tensors has {} bytes, but "
        "at most {} are allowed. Split the tensors over more files.",
        order.size(),
        size,
        limits::kHeaderBytes));
  }
  header.bytes = size + static_cast<int64_t>(sizeof(uint64_t));
  for (auto* entry : order) {
    entry->second.begin += header.bytes;
    entry->second.end += header.bytes;
  }
  std::string bytes(sizeof(uint64_t), '\0');
  const auto length = static_cast<uint64_t>(size);
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes += json;
}

std::string read_header(const File& file, const std::string& source) {
  const auto file_bytes = file.size();
  uint64_t length = 0;
  if (file.read_at(0, std::as_writable_bytes(std::span(&length, 1))) !=
      static_cast<int64_t>(sizeof(length))) {
    throw_corrupt(
        source, fmt::format("{} bytes: not a tensor file", file_bytes));
  }
  const auto left = file_bytes - static_cast<int64_t>(sizeof(length));
  if (length > uint64_t{limits::kHeaderBytes} ||
      length > static_cast<uint64_t>(std::max<int64_t>(left, 0))) {
    throw_corrupt(
        source,
        fmt::format(
            "byte 0: the file states a header of {} bytes, but the file has {} "
            "bytes and a header at most {}",
            length,
            file_bytes,
            limits::kHeaderBytes));
  }
  std::string bytes(sizeof(length) + length, '\0');
  if (file.read_at(0, std::as_writable_bytes(std::span(bytes))) !=
      static_cast<int64_t>(bytes.size())) {
    throw_corrupt(source, "the file was truncated while it was being read");
  }
  return bytes;
}

} // namespace weft::checkpoint
