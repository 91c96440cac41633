#include "data_parallel/comm_hooks/hook_state_rows.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "data_parallel/replicas/tensor_hash.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

namespace weft::data_parallel {
namespace {

constexpr const char* kBytes = "state";
constexpr const char* kSizes = "state_bytes";
constexpr const char* kCommon = "common";
/// The entry of "common" with the mesh that saved the state and the names of
/// the entries that differ between ranks.
constexpr const char* kSavedBy = "ddp/saved_by";
constexpr size_t kLengthBytes = sizeof(uint64_t);

void check_bytes(bool condition, const char* what) {
  WEFT_CHECK(
      condition,
      "ddp",
      mesh::ErrorContext{"comm hook state"},
      "these bytes are not a comm hook state: ",
      what,
      ". Load the result of comm_hook_state_dict().");
}

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

// One tensor's entry of the header, checked before its memory is allocated.
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
    check_bytes(count.has_value(), "the values are truncated");
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

at::Tensor as_row(const at::Tensor& row, const mesh::DeviceMesh& mesh) {
  return dtensor::from_local(
      row,
      mesh,
      dtensor::Placements(static_cast<size_t>(mesh.ndim()), dtensor::Shard(0)));
}

/// Returns the mesh dims of more than one rank, e.g. "dp=2", "tp=4". Dims of
/// one rank do not change which rank has which row.
std::vector<std::string> proper_shape(const mesh::DeviceMesh& mesh) {
  std::vector<std::string> shape;
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    if (mesh.size(i) > 1) {
      shape.push_back(
          mesh::detail::concat(mesh.mesh_dim_names()[i], "=", mesh.size(i)));
    }
  }
  return shape;
}

/// The names of the entries that are identical on all ranks, and of those that
/// are not.
struct EntryNames {
  std::set<std::string> alike;
  std::set<std::string> own;
};

std::string describe_entry(const at::Tensor& tensor) {
  return mesh::detail::concat(
      tensor.scalar_type(), tensor.sizes(), hash_of_bits(tensor));
}

// Compares one mesh dim after the other. Each dim passes on the result of the
// dims before it, so that in the end all ranks have the result of the whole
// mesh.
EntryNames compare_ranks(
    const CommHook::State& state,
    const mesh::DeviceMesh& mesh) {
  auto alike = nlohmann::json::object();
  std::set<std::string> all;
  for (const auto& [name, tensor] : state) {
    alike[name] = describe_entry(tensor.detach().cpu());
    all.insert(name);
  }
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    const auto text =
        base::strict_json_text(nlohmann::json{{"alike", alike}, {"all", all}});
    for (const auto& other : mesh::all_gather_text(
             mesh.group(dim), text, "comm hook state", mesh.world().device())) {
      const auto told = base::parse_json(other);
      all.merge(told.at("all").get<std::set<std::string>>());
      auto both = nlohmann::json::object();
      for (const auto& [name, value] : alike.items()) {
        if (told.at("alike").value(name, "") == value.get<std::string>()) {
          both[name] = value;
        }
      }
      alike = std::move(both);
    }
  }
  EntryNames names;
  for (const auto& name : all) {
    (alike.contains(name) ? names.alike : names.own).insert(name);
  }
  return names;
}

struct SavedBy {
  std::string mesh;
  std::vector<std::string> shape;
  std::set<std::string> own;
};

SavedBy read_saved_by(CommHook::State& state) {
  const auto entry = state.extract(kSavedBy);
  check_bytes(!entry.empty(), "the ranks that saved them are unknown");
  try {
    const auto told = base::parse_json(unpack_text(entry.mapped()));
    return {
        told.at("mesh").get<std::string>(),
        told.at("shape").get<std::vector<std::string>>(),
        told.at("own").get<std::set<std::string>>()};
  } catch (const nlohmann::json::exception&) {
    check_bytes(false, "the ranks that saved them are unknown");
    throw;
  }
}

void check_nothing_is_lost(
    const SavedBy& saved,
    const mesh::DeviceMesh& mesh,
    const std::set<std::string>& not_elsewhere) {
  std::vector<std::string> lost;
  std::set_difference(
      saved.own.begin(),
      saved.own.end(),
      not_elsewhere.begin(),
      not_elsewhere.end(),
      std::back_inserter(lost));
  if (lost.empty()) {
    return;
  }
  WEFT_CHECK(
      false,
      "load_comm_hook_state_dict",
      mesh::ErrorContext{mesh.describe_rank()},
      "the hook's state was saved on ",
      saved.mesh,
      " and cannot be resumed on ",
      mesh.to_string(),
      ": each rank keeps ",
      lost.size(),
      lost.size() == 1 ? " entry" : " entries",
      " of its own, such as ",
      lost.front(),
      ", which belong to its part of the batch and of the model. Load on a "
      "mesh of the same shape, or do not load the hook's state: it then starts "
      "from scratch.");
}

at::Tensor own_row(
    const dtensor::StateDict& rows,
    const char* key,
    const mesh::DeviceMesh& mesh) {
  const auto found = rows.find(key);
  check_bytes(found != rows.end(), "an entry is missing");
  const auto& all = found->second;
  check_bytes(
      all.dim() == 2 && all.size(0) == mesh.size(),
      "there is not one row a rank");
  const auto* impl = dtensor::dtensor_impl(all);
  if (impl && impl->spec().mesh().ranks() == mesh.ranks() &&
      impl->local().size(0) == 1) {
    return impl->local()[0];
  }
  const auto& ranks = mesh.ranks();
  const auto index =
      std::find(ranks.begin(), ranks.end(), mesh.rank()) - ranks.begin();
  return (impl ? dtensor::full_tensor(all) : all)[index];
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
  const auto text = base::strict_json_text(header);
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
  check_bytes(here.scalar_type() == at::kByte, "they are not bytes");
  const auto* from = here.const_data_ptr<uint8_t>();
  const auto* const end = from + here.numel();
  uint64_t length = 0;
  check_bytes(here.nbytes() >= kLengthBytes, "they are too few");
  std::memcpy(&length, from, kLengthBytes);
  from += kLengthBytes;
  check_bytes(
      length <= static_cast<uint64_t>(end - from), "the header is truncated");
  const auto header = base::try_parse_json(
      {reinterpret_cast<const char*>(from), static_cast<size_t>(length)});
  check_bytes(header.is_array(), "the header is not a list");
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

at::Tensor pack_text(const std::string& text) {
  const auto entry = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), entry.mutable_data_ptr<uint8_t>());
  return entry;
}

std::string unpack_text(const at::Tensor& entry) {
  const auto here = entry.cpu().contiguous();
  check_bytes(here.scalar_type() == at::kByte, "a text is none");
  const auto* from = here.const_data_ptr<uint8_t>();
  return {from, from + here.numel()};
}

dtensor::StateDict to_rows(
    const CommHook::State& state,
    const mesh::DeviceMesh& mesh) {
  const auto entries = compare_ranks(state, mesh);
  CommHook::State common;
  CommHook::State own;
  for (const auto& [name, tensor] : state) {
    (entries.alike.contains(name) ? common : own).emplace(name, tensor);
  }
  common.emplace(
      kSavedBy,
      pack_text(base::strict_json_text(nlohmann::json{
          {"mesh", mesh.to_string()},
          {"shape", proper_shape(mesh)},
          {"own", entries.own}})));
  const auto replicated = dtensor::Placements(
      static_cast<size_t>(mesh.ndim()), dtensor::Replicate());
  dtensor::StateDict rows{
      {kCommon,
       dtensor::from_local(pack_hook_state(common), mesh, replicated)}};
  if (entries.own.empty()) {
    return rows;
  }
  const auto packed = pack_hook_state(own);
  const auto size = at::full({1, 1}, packed.numel(), at::kLong);
  const auto longest = size.view({1}).clone();
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    mesh.group(dim)
        .all_reduce(longest, mesh::ReduceOp::kMax, "comm hook state")
        .wait();
  }
  const auto row = at::zeros({1, longest.item<int64_t>()}, at::kByte);
  row[0].narrow(0, 0, packed.numel()).copy_(packed);
  rows.emplace(kBytes, as_row(row, mesh));
  rows.emplace(kSizes, as_row(size, mesh));
  return rows;
}

CommHook::State from_rows(
    const dtensor::StateDict& rows,
    const mesh::DeviceMesh& mesh,
    const std::set<std::string>& not_elsewhere) {
  const auto found = rows.find(kCommon);
  check_bytes(found != rows.end(), "an entry is missing");
  const auto& packed = found->second;
  auto state = unpack_hook_state(
      dtensor::is_dtensor(packed) ? dtensor::full_tensor(packed) : packed);
  const auto saved = read_saved_by(state);
  if (saved.shape != proper_shape(mesh)) {
    check_nothing_is_lost(saved, mesh, not_elsewhere);
    for (const auto& name : not_elsewhere) {
      state.erase(name);
    }
    return state;
  }
  if (saved.own.empty()) {
    return state;
  }
  const auto size = own_row(rows, kSizes, mesh).item<int64_t>();
  const auto row = own_row(rows, kBytes, mesh);
  check_bytes(size >= 0 && size <= row.numel(), "a row is truncated");
  state.merge(unpack_hook_state(row.narrow(0, 0, size)));
  return state;
}

} // namespace weft::data_parallel
