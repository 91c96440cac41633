#include "data_parallel/replicas/replica_difference.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "base/string_streams.h"
#include "data_parallel/parameters/parameter_owners.h"
#include "data_parallel/replicas/replica_comparison.h"
#include "data_parallel/replicas/replicas.h"
#include "data_parallel/replicas/tensor_hash.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

namespace weft::data_parallel {
namespace {

constexpr const char* kStructureName = "structure of the replicas";

int64_t hash_of_structure(const std::vector<NamedTensor>& tensors) {
  base::StringWriter structure;
  for (const auto& item : tensors) {
    const auto local = local_part(item.tensor);
    structure << item.name << ' ' << local.scalar_type() << ' ' << local.sizes()
              << '\n';
  }
  const auto text = structure.str();
  return hash_of(text.data(), text.size());
}

// Throws if the replicas have different tensors. Must run before their hashes
// are compared one by one, because a rank may have more tensors than another.
void check_structure(
    int64_t own,
    const std::vector<NamedTensor>& tensors,
    const mesh::DeviceMesh& dp) {
  const auto rows = gather_numbers(
      dp.group(int64_t{0}),
      {own},
      c10::Device(c10::DeviceType::CPU),
      kStructureName);
  if (!(rows == rows[0]).all().item<bool>()) {
    check_replicas_agree(tensors, {}, {}, dp);
    mesh::throw_error<mesh::DisagreementError>(mesh::detail::concat(
        "[ddp] the replicas' tensors differ in their local shapes. Build "
        "the same model on every rank. (",
        dp.describe_rank(),
        ")"));
  }
}

ReplicaDifference
describe_vote(ReplicaMismatch vote, const NamedTensor& item, size_t index) {
  ReplicaDifference found{
      .name = item.name,
      .index = index,
      .first_rank = vote.majority_ranks.empty() ? vote.tied_ranks[0]
                                                : vote.majority_ranks[0],
      .ranks = std::move(vote.mismatched_ranks),
      .has_majority = vote.tied_ranks.empty(),
      .largest = 0,
      .nan_ranks = {}};
  for (const auto rank : vote.tied_ranks) {
    if (rank != found.first_rank) {
      found.ranks.push_back(rank);
    }
  }
  std::ranges::sort(found.ranks);
  return found;
}

std::string list(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

} // namespace

std::optional<ReplicaDifference> find_replica_difference(
    const std::vector<NamedTensor>& tensors,
    const mesh::DeviceMesh& dp) {
  if (tensors.empty()) {
    return std::nullopt;
  }
  const at::NoGradGuard no_grad;
  const auto root = dp.root();
  std::vector<ReplicatedHash> numbers{
      {hash_of_structure(tensors), replicated_mesh_dims({}, dp)}};
  for (const auto& item : tensors) {
    numbers.push_back(
        {hash_of_bits(item.tensor), replicated_mesh_dims(item.tensor, dp)});
  }
  if (replicas_match(numbers, root)) {
    return std::nullopt;
  }
  check_structure(numbers[0].value, tensors, dp);
  auto vote = find_replica_mismatch(numbers, root);
  const size_t index = vote.index - 1;
  const auto& item = tensors[index];
  auto found = describe_vote(std::move(vote), item, index);
  const auto distance = measure_replica_deviation(
      item.tensor, numbers[index + 1].mesh_dims, root, found.first_rank);
  found.largest = distance.largest;
  found.nan_ranks = distance.nan_ranks;
  return found;
}

void check_replicas_equal(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const std::set<std::string>& ignore) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::vector<NamedTensor>& all) {
    std::copy_if(
        all.begin(),
        all.end(),
        std::back_inserter(tensors),
        [&](const NamedTensor& item) { return !ignore.contains(item.name); });
  };
  const auto parameters = parameters_of(module);
  add(parameters);
  const size_t buffers_begin = tensors.size();
  add(buffers_of(module));
  const auto found = find_replica_difference(tensors, dp);
  if (!found) {
    return;
  }
  const ParameterOwners owners(module);
  std::string owner;
  for (const auto& each : owners.of(tensors[found->index].tensor)) {
    owner += (owner.empty() ? " of " : ", ") + describe(each);
  }
  mesh::throw_error<mesh::DisagreementError>(mesh::detail::concat(
      "[ddp] the replicas differ: ",
      found->index < buffers_begin ? "parameter " : "buffer ",
      found->name,
      owner,
      " has other values on ",
      list(found->ranks),
      " than on rank ",
      found->first_rank,
      "; the largest difference is ",
      found->largest,
      found->nan_ranks.empty()
          ? ""
          : ", and it holds a NaN on " + list(found->nan_ranks),
      ". Take the same optimizer steps on every rank and change parameters "
      "nowhere else, or start again from a checkpoint. (",
      dp.describe_rank(),
      ")"));
}

} // namespace weft::data_parallel
