#include "train/report/rank_share.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "train/metrics/write_file.h"

namespace weft::train {
namespace {

using nlohmann::ordered_json;

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(
      sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// Returns the spec of a parameter on the full mesh. The parameter is replicated
// on mesh dims that its own mesh lacks.
dtensor::DTensorSpec spec_on(
    const at::Tensor& parameter,
    const mesh::DeviceMesh& mesh) {
  dtensor::Placements placements(mesh.ndim(), dtensor::Replicate());
  if (!dtensor::is_dtensor(parameter)) {
    return {mesh, placements};
  }
  const auto& spec = dtensor::spec_of(parameter);
  for (int64_t d = 0; d < spec.mesh_ndim(); ++d) {
    const auto& name = spec.mesh().mesh_dim_names()[d];
    placements[mesh.mesh_dim(name)] = spec.placement(d);
  }
  return {mesh, placements};
}

std::vector<int64_t> coordinate_of(
    int64_t index,
    const std::vector<int64_t>& shape) {
  std::vector<int64_t> coordinate(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    coordinate[d] = index % shape[d];
    index /= shape[d];
  }
  return coordinate;
}

std::string dtype_name(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return c10::toString(tensor.scalar_type());
  }
}

void add_parameter(
    RankShares& shares,
    const std::string& name,
    const at::Tensor& parameter,
    const dtensor::DTensorSpec& spec) {
  ParameterShare share;
  share.name = name;
  share.shape = parameter.sizes().vec();
  share.dtype = dtype_name(parameter);
  for (const auto& placement : spec.placements()) {
    share.placements.push_back(placement.to_string());
  }
  const auto element_bytes = static_cast<int64_t>(parameter.element_size());
  for (int64_t i = 0; i < shares.size(); ++i) {
    const int64_t elements = product(dtensor::local_sizes_at(
        spec, share.shape, coordinate_of(i, shares.mesh_shape)));
    const int64_t bytes = elements * element_bytes;
    shares.elements[i] += elements;
    shares.bytes[i] += bytes;
    share.min_bytes = i == 0 ? bytes : std::min(share.min_bytes, bytes);
    share.max_bytes = std::max(share.max_bytes, bytes);
  }
  shares.total_elements += parameter.numel();
  shares.total_bytes += parameter.numel() * element_bytes;
  shares.parameters.push_back(std::move(share));
}

void check(bool condition, const char* message) {
  if (!condition) {
    mesh::throw_error<mesh::UsageError>(message);
  }
}

void check_sizes(const RankShares& shares) {
  constexpr int64_t kMaxRanks = 1 << 24;
  check(
      !shares.mesh_shape.empty() &&
          shares.mesh_dims.size() == shares.mesh_shape.size(),
      "mesh.dims and mesh.shape differ in length, or are empty");
  int64_t count = 1;
  for (const int64_t size : shares.mesh_shape) {
    check(size >= 1 && size <= kMaxRanks / count, "mesh.shape is impossible");
    count *= size;
  }
  check(
      shares.size() == count && shares.elements.size() == shares.ranks.size() &&
          shares.bytes.size() == shares.ranks.size(),
      "there is not one entry for every rank of the mesh");
  for (const auto& parameter : shares.parameters) {
    check(
        parameter.placements.size() == shares.mesh_shape.size(),
        "a parameter has not one placement for every mesh dim");
  }
}

} // namespace

RankShares rank_shares(
    const torch::nn::Module& model,
    const mesh::DeviceMesh& mesh) {
  RankShares shares;
  shares.mesh_dims = mesh.mesh_dim_names();
  shares.mesh_shape = mesh.shape();
  shares.ranks = mesh.ranks();
  shares.elements.resize(shares.ranks.size());
  shares.bytes.resize(shares.ranks.size());
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      add_parameter(shares, item.key(), parameter, spec_on(parameter, mesh));
    }
  }
  return shares;
}

std::string to_json(const RankShares& shares) {
  auto parameters = ordered_json::array();
  for (const auto& p : shares.parameters) {
    parameters.push_back(
        {{"name", p.name},
         {"shape", p.shape},
         {"dtype", p.dtype},
         {"placements", p.placements},
         {"least_bytes", p.min_bytes},
         {"most_bytes", p.max_bytes}});
  }
  const ordered_json json = {
      {"dims", shares.mesh_dims},
      {"shape", shares.mesh_shape},
      {"ranks", shares.ranks},
      {"elements", shares.elements},
      {"bytes", shares.bytes},
      {"total_elements", shares.total_elements},
      {"total_bytes", shares.total_bytes},
      {"parameters", parameters}};
  return base::json_text(json);
}

RankShares parse_rank_shares(const std::string& text) {
  RankShares shares;
  try {
    const auto json = base::parse_json(text);
    json.at("dims").get_to(shares.mesh_dims);
    json.at("shape").get_to(shares.mesh_shape);
    json.at("ranks").get_to(shares.ranks);
    json.at("elements").get_to(shares.elements);
    json.at("bytes").get_to(shares.bytes);
    json.at("total_elements").get_to(shares.total_elements);
    json.at("total_bytes").get_to(shares.total_bytes);
    for (const auto& p : json.at("parameters")) {
      shares.parameters.push_back(
          {p.at("name").get<std::string>(),
           p.at("shape").get<std::vector<int64_t>>(),
           p.at("dtype").get<std::string>(),
           p.at("placements").get<std::vector<std::string>>(),
           p.at("least_bytes").get<int64_t>(),
           p.at("most_bytes").get<int64_t>()});
    }
  } catch (const nlohmann::json::exception& error) {
    mesh::throw_error<mesh::UsageError>(error.what());
  }
  check_sizes(shares);
  return shares;
}

void write_rank_shares(
    const std::string& run_folder,
    const torch::nn::Module& model,
    const mesh::DeviceMesh& mesh) {
  write_file(
      std::filesystem::path(run_folder) / "layout.json",
      to_json(rank_shares(model, mesh)) + "\n");
}

} // namespace weft::train
