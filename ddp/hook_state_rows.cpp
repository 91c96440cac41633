#include "ddp/hook_state_rows.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "mesh/error.h"

namespace weft::ddp {
namespace {

constexpr const char* kBytes = "state";
constexpr const char* kSizes = "state_bytes";
constexpr size_t kLengthBytes = sizeof(uint64_t);

void check_bytes(bool condition, const char* what) {
  WEFT_CHECK(
      condition,
      "ddp",
      mesh::ErrorContext{"comm hook state"},
      "these bytes are no state of a comm hook: ",
      what,
      ". Load what comm_hook_state_dict() gave.");
}

at::Tensor row_of(const dtensor::StateDict& rows, const char* key) {
  const auto found = rows.find(key);
  check_bytes(found != rows.end(), "an entry is missing");
  const auto* impl = dtensor::dtensor_impl(found->second);
  return impl ? impl->local() : found->second;
}

// The values that `sizes` asks for, as long as they are at most `most`.
std::optional<size_t> count_values(
    const std::vector<int64_t>& sizes,
    size_t most) {
  size_t count = 1;
  for (const int64_t size : sizes) {
    if (size < 0 ||
        __builtin_mul_overflow(count, static_cast<size_t>(size), &count)) {
      return std::nullopt;
    }
  }
  return count <= most ? std::optional(count) : std::nullopt;
}

// One tensor's entry of the header, checked before anything is allocated.
struct Entry {
  std::string name;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  size_t bytes;
};

Entry read_entry(const nlohmann::json& item, size_t bytes_left) {
  try {
    const auto code = item.at("dtype").get<int>();
    const auto dtype = static_cast<at::ScalarType>(code);
    check_bytes(
        code >= 0 && code < static_cast<int>(at::ScalarType::NumOptions) &&
            (at::isFloatingType(dtype) || at::isComplexType(dtype) ||
             at::isIntegralType(dtype, /*includeBool=*/true)),
        "a dtype is unknown");
    auto sizes = item.at("sizes").get<std::vector<int64_t>>();
    const auto width = c10::elementSize(dtype);
    const auto count = count_values(sizes, bytes_left / width);
    check_bytes(count.has_value(), "the values are cut off");
    return {
        item.at("name").get<std::string>(),
        std::move(sizes),
        dtype,
        *count * width};
  } catch (const nlohmann::json::exception&) {
    check_bytes(false, "an entry of the header is incomplete");
    throw;
  }
}

} // namespace

at::Tensor pack_hook_state(const CommHook::State& state) {
  auto header = nlohmann::json::array();
  std::vector<at::Tensor> values;
  size_t bytes = 0;
  for (const auto& [name, tensor] : state) {
    header.push_back(
        {{"name", name},
         {"dtype", static_cast<int>(tensor.scalar_type())},
         {"sizes", tensor.sizes().vec()}});
    values.push_back(tensor.detach().cpu().contiguous());
    bytes += values.back().nbytes();
  }
  const auto text = header.dump();
  const uint64_t length = text.size();
  const auto packed = at::empty(
      {static_cast<int64_t>(kLengthBytes + text.size() + bytes)}, at::kByte);
  auto* to = packed.mutable_data_ptr<uint8_t>();
  std::memcpy(to, &length, kLengthBytes);
  std::memcpy(to + kLengthBytes, text.data(), text.size());
  to += kLengthBytes + text.size();
  for (const auto& value : values) {
    if (value.nbytes() > 0) {
      std::memcpy(to, value.const_data_ptr(), value.nbytes());
      to += value.nbytes();
    }
  }
  return packed;
}

CommHook::State unpack_hook_state(const at::Tensor& bytes) {
  const auto here = bytes.cpu().contiguous();
  check_bytes(here.scalar_type() == at::kByte, "they are no bytes");
  const auto* from = here.const_data_ptr<uint8_t>();
  const auto* const end = from + here.numel();
  uint64_t length = 0;
  check_bytes(here.nbytes() >= kLengthBytes, "they are too few");
  std::memcpy(&length, from, kLengthBytes);
  from += kLengthBytes;
  check_bytes(
      length <= static_cast<uint64_t>(end - from), "the header is cut off");
  const auto header =
      nlohmann::json::parse(from, from + length, nullptr, false);
  check_bytes(header.is_array(), "the header is no list");
  from += length;
  CommHook::State state;
  for (const auto& item : header) {
    auto entry = read_entry(item, static_cast<size_t>(end - from));
    const auto tensor = at::empty(entry.sizes, entry.dtype);
    if (entry.bytes > 0) {
      std::memcpy(tensor.mutable_data_ptr(), from, entry.bytes);
      from += entry.bytes;
    }
    state.emplace(std::move(entry.name), tensor);
  }
  return state;
}

at::Tensor as_row(const at::Tensor& row, const mesh::DeviceMesh& mesh) {
  return dtensor::from_local(
      row,
      mesh,
      dtensor::Placements(static_cast<size_t>(mesh.ndim()), dtensor::Shard(0)));
}

dtensor::StateDict to_rows(
    const CommHook::State& state,
    const mesh::DeviceMesh& mesh) {
  const auto packed = pack_hook_state(state);
  const auto size = at::full({1, 1}, packed.numel(), at::kLong);
  const auto longest = size.view({1}).clone();
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    mesh.group(dim)
        .all_reduce(longest, mesh::ReduceOp::kMax, "comm hook state")
        .wait();
  }
  const auto row = at::zeros({1, longest.item<int64_t>()}, at::kByte);
  row[0].narrow(0, 0, packed.numel()).copy_(packed);
  return {{kBytes, as_row(row, mesh)}, {kSizes, as_row(size, mesh)}};
}

CommHook::State from_rows(
    const dtensor::StateDict& rows,
    const mesh::DeviceMesh& mesh) {
  const auto row = row_of(rows, kBytes);
  const auto size = row_of(rows, kSizes);
  WEFT_CHECK(
      row.dim() == 2 && row.size(0) == 1 && size.numel() == 1,
      "ddp",
      mesh::ErrorContext{mesh.describe_rank()},
      "the state of a comm hook has a row for each rank it was saved by; this "
      "rank got ",
      row.dim() == 2 ? row.size(0) : 0,
      " of them. Resume on the same mesh, or without the hook's state.");
  return unpack_hook_state(row[0].narrow(0, 0, size.item<int64_t>()));
}

} // namespace weft::ddp
