#include "data_parallel/replicas/replica_comparison.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"
#include "data_parallel/replicas/tensor_hash.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/exchange.h"

namespace weft::data_parallel {
namespace {

constexpr int64_t kNoIndex = std::numeric_limits<int64_t>::max();
constexpr const char* kVoteName = "copies of the state";

bool has_dim(uint32_t mesh_dims, int64_t dim) {
  return (mesh_dims >> dim & 1U) != 0;
}

uint32_t bit_of(int64_t dim) {
  return uint32_t{1} << dim;
}

std::vector<int64_t> mesh_dims_with_peers(const mesh::DeviceMesh& mesh) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    if (mesh.size(dim) > 1 && mesh.group(dim).backend() != "fake") {
      dims.push_back(dim);
    }
  }
  return dims;
}

at::Tensor min_along(
    const mesh::DeviceMesh& mesh,
    int64_t dim,
    const std::vector<int64_t>& own) {
  auto row = at::tensor(own, at::kLong);
  mesh.group(dim).all_reduce(row, mesh::ReduceOp::kMin, kVoteName).wait();
  return row;
}

int64_t hash_along(const std::vector<ReplicatedHash>& numbers, int64_t dim) {
  std::vector<int64_t> values;
  values.reserve(numbers.size());
  for (const auto& number : numbers) {
    if (has_dim(number.mesh_dims, dim)) {
      values.push_back(number.value);
    }
  }
  return hash_of(values.data(), values.size() * sizeof(int64_t));
}

// Returns true if each tensor that is replicated along a dim is also replicated
// along all dims before it. Ranks that agree along these dims then have the
// same copies, so that they find the same result along the dim.
bool are_nested(
    const std::vector<ReplicatedHash>& numbers,
    const std::vector<int64_t>& dims) {
  return std::ranges::all_of(numbers, [&](const ReplicatedHash& number) {
    bool is_copied = true;
    return std::ranges::all_of(dims, [&](int64_t dim) {
      const bool was_copied = is_copied;
      is_copied = has_dim(number.mesh_dims, dim);
      return was_copied || !is_copied;
    });
  });
}

int64_t first_difference(
    const std::vector<ReplicatedHash>& numbers,
    const mesh::DeviceMesh& mesh) {
  const auto dims = mesh_dims_with_peers(mesh);
  const auto count = static_cast<int64_t>(numbers.size());
  int64_t index = kNoIndex;
  for (const auto dim : dims) {
    std::vector<int64_t> row(numbers.size() * 2, 0);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const bool counts = has_dim(numbers[i].mesh_dims, dim);
      row[i] = counts ? numbers[i].value : 0;
      row[i + numbers.size()] = ~row[i];
    }
    const auto least = min_along(mesh, dim, row);
    const auto* value = least.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      // The complement of the complements' minimum is the maximum.
      if (value[i] != ~value[i + count]) {
        index = std::min(index, i);
        break;
      }
    }
  }
  for (const auto dim : dims) {
    index = min_along(mesh, dim, {index}).item<int64_t>();
  }
  TORCH_INTERNAL_ASSERT(index != kNoIndex, "the copies agree");
  return index;
}

/// Returns the coordinates of the rank at position `at` of mesh.ranks().
std::vector<int64_t> coordinates(const mesh::DeviceMesh& mesh, int64_t at) {
  std::vector<int64_t> result(static_cast<size_t>(mesh.ndim()));
  for (int64_t dim = mesh.ndim() - 1; dim >= 0; --dim) {
    result[static_cast<size_t>(dim)] = at % mesh.size(dim);
    at /= mesh.size(dim);
  }
  return result;
}

using Places = std::vector<size_t>;

/// Returns the sets of positions in mesh.ranks() that hold copies of one
/// tensor.
std::vector<Places> sets_of_copies(
    const mesh::DeviceMesh& mesh,
    uint32_t mesh_dims) {
  std::map<std::vector<int64_t>, Places> sets;
  for (size_t at = 0; at < mesh.ranks().size(); ++at) {
    auto where = coordinates(mesh, static_cast<int64_t>(at));
    for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
      if (has_dim(mesh_dims, dim)) {
        where[static_cast<size_t>(dim)] = 0;
      }
    }
    sets[where].push_back(at);
  }
  std::vector<Places> result;
  for (auto& [where, places] : sets) {
    result.push_back(std::move(places));
  }
  return result;
}

/// Returns the places with the most frequent value. Empty if no value is the
/// most frequent, or if it occurs only once.
Places majority_of(const Places& set, const std::vector<int64_t>& values) {
  std::map<int64_t, Places> by_value;
  for (const auto at : set) {
    by_value[values[at]].push_back(at);
  }
  std::vector<Places> camps;
  for (auto& [value, places] : by_value) {
    camps.push_back(std::move(places));
  }
  std::ranges::stable_sort(camps, std::ranges::greater(), &Places::size);
  const bool wins = camps[0].size() > 1 &&
                    (camps.size() == 1 || camps[0].size() > camps[1].size());
  return wins ? camps[0] : Places();
}

void add_verdict(
    const Places& set,
    const mesh::DeviceMesh& mesh,
    ReplicaMismatch& verdict) {
  const auto is_first = [&](size_t at) {
    return verdict.values[at] == verdict.values[set[0]];
  };
  if (std::ranges::all_of(set, is_first)) {
    return;
  }
  const auto majority = majority_of(set, verdict.values);
  for (const auto at : set) {
    auto& list = majority.empty() ? verdict.tied_ranks
                 : std::ranges::count(majority, at) > 0
                     ? verdict.majority_ranks
                     : verdict.mismatched_ranks;
    list.push_back(mesh.ranks()[at]);
  }
}

at::Tensor to_doubles(const at::Tensor& tensor) {
  const auto values = tensor.cpu();
  return (values.is_complex() ? at::view_as_real(values.resolve_conj())
                              : values)
      .to(at::kDouble)
      .reshape({-1});
}

} // namespace

uint32_t all_mesh_dims(const mesh::DeviceMesh& mesh) {
  return bit_of(mesh.ndim()) - 1;
}

uint32_t replicated_mesh_dims(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& dp) {
  const auto root = dp.root();
  uint32_t result = 0;
  for (const auto& name : dp.mesh_dim_names()) {
    result |= bit_of(root.mesh_dim(name));
  }
  const auto* impl = dtensor::dtensor_impl(tensor);
  if (!impl || impl->spec().mesh().root() != root) {
    return result;
  }
  const auto& spec = impl->spec();
  for (int64_t dim = 0; dim < spec.mesh_ndim(); ++dim) {
    if (spec.placement(dim).is_replicate()) {
      const auto& name = spec.mesh().mesh_dim_names()[static_cast<size_t>(dim)];
      if (root.has_mesh_dim(name)) {
        result |= bit_of(root.mesh_dim(name));
      }
    }
  }
  return result;
}

bool replicas_match(
    const std::vector<ReplicatedHash>& numbers,
    const mesh::DeviceMesh& mesh) {
  const at::NoGradGuard no_grad;
  const auto dims = mesh_dims_with_peers(mesh);
  bool agree = true;
  for (const auto dim : dims) {
    const auto own = hash_along(numbers, dim);
    const auto least = min_along(mesh, dim, {own, ~own, agree ? 1 : 0});
    const auto* value = least.const_data_ptr<int64_t>();
    agree = value[0] == ~value[1] && value[2] == 1;
  }
  if (!are_nested(numbers, dims)) {
    for (const auto dim : dims) {
      agree = min_along(mesh, dim, {agree ? 1 : 0}).item<int64_t>() == 1;
    }
  }
  return agree;
}

ReplicaMismatch find_replica_mismatch(
    const std::vector<ReplicatedHash>& numbers,
    const mesh::DeviceMesh& mesh) {
  const at::NoGradGuard no_grad;
  ReplicaMismatch verdict;
  verdict.index = static_cast<size_t>(first_difference(numbers, mesh));
  const auto& number = numbers[verdict.index];
  for (const auto& row : gather_over_mesh({number.value}, mesh)) {
    verdict.values.push_back(row[0]);
  }
  for (const auto& set : sets_of_copies(mesh, number.mesh_dims)) {
    add_verdict(set, mesh, verdict);
  }
  for (auto* list :
       {&verdict.majority_ranks,
        &verdict.mismatched_ranks,
        &verdict.tied_ranks}) {
    std::ranges::sort(*list);
  }
  return verdict;
}

ReplicaDeviation measure_replica_deviation(
    const at::Tensor& tensor,
    uint32_t mesh_dims,
    const mesh::DeviceMesh& mesh,
    int64_t reference) {
  const at::NoGradGuard no_grad;
  const auto& ranks = mesh.ranks();
  const auto where =
      coordinates(mesh, std::ranges::find(ranks, reference) - ranks.begin());
  const auto local = local_part(tensor);
  auto copy = local.contiguous().clone();
  for (const auto dim : mesh_dims_with_peers(mesh)) {
    if (has_dim(mesh_dims, dim)) {
      mesh.group(dim)
          .broadcast(copy, where[static_cast<size_t>(dim)], kVoteName)
          .wait();
    }
  }
  const auto own = to_doubles(local);
  const auto apart =
      (own - to_doubles(copy))
          .abs()
          .nan_to_num(0, std::numeric_limits<double>::infinity());
  const double largest = own.numel() > 0 ? apart.max().item<double>() : 0;
  const auto rows = gather_over_mesh(
      {std::bit_cast<int64_t>(largest),
       at::isnan(own).any().item<bool>() ? 1 : 0},
      mesh);
  ReplicaDeviation distance;
  for (size_t at = 0; at < rows.size(); ++at) {
    distance.largest =
        std::max(distance.largest, std::bit_cast<double>(rows[at][0]));
    if (rows[at][1] != 0) {
      distance.nan_ranks.push_back(ranks[at]);
    }
  }
  return distance;
}

std::vector<std::vector<int64_t>> gather_over_mesh(
    const std::vector<int64_t>& own,
    const mesh::DeviceMesh& mesh) {
  auto all = own;
  auto dims = mesh_dims_with_peers(mesh);
  std::ranges::reverse(dims);
  for (const auto dim : dims) {
    const auto rows = gather_numbers(
        mesh.group(dim), all, c10::Device(c10::DeviceType::CPU), kVoteName);
    const auto* begin = rows.const_data_ptr<int64_t>();
    all.assign(begin, begin + rows.numel());
  }
  std::vector<std::vector<int64_t>> result;
  for (size_t at = 0; at + own.size() <= all.size(); at += own.size()) {
    result.emplace_back(
        all.begin() + static_cast<int64_t>(at),
        all.begin() + static_cast<int64_t>(at + own.size()));
  }
  return result;
}

} // namespace weft::data_parallel
