#include "tests/ddp/harness/mixture_of_experts.h"

#include "mesh/error/error.h"

namespace weft::test {
namespace {

constexpr int64_t kExpertDim = 23;
constexpr int64_t kSharedDim = 12;
constexpr int64_t kInputDim = 8;

} // namespace

MixtureOfExperts::MixtureOfExperts(int64_t replicas) : replicas_(replicas) {
  register_shared();
  for (int64_t i = 0; i <= expert_of(replicas - 1); ++i) {
    experts.push_back(register_module(
        "expert" + std::to_string(i),
        torch::nn::Linear(kExpertDim, kSharedDim)));
  }
}

MixtureOfExperts::MixtureOfExperts(const mesh::DeviceMesh& dp)
    : replicas_(dp.size()), own_expert_(expert_of(dp.coordinate(0))) {
  register_shared();
  experts.push_back(
      register_module("expert", torch::nn::Linear(kExpertDim, kSharedDim)));
  std::vector<int64_t> same;
  for (int64_t rank = 0; rank < replicas_; ++rank) {
    if (expert_of(rank) == *own_expert_) {
      same.push_back(dp.ranks()[rank]);
    }
  }
  const auto scope = mesh::detail::concat(
      "harness ", dp.world().next_id(), " at ", same.front());
  expert_mesh_ = mesh::DeviceMesh::from_group(
      dp.world(), dp.world().make_group("expert", same, scope));
}

void MixtureOfExperts::register_shared() {
  first = register_module("first", torch::nn::Linear(kInputDim, kSharedDim));
  shared = register_module("shared", torch::nn::Linear(kSharedDim, kExpertDim));
  last = register_module("last", torch::nn::Linear(kSharedDim, kInputDim));
}

at::Tensor MixtureOfExperts::forward(const Inputs& inputs) {
  const auto x = shared(first(inputs.at(0)));
  if (own_expert_) {
    return last(experts[0](x));
  }
  at::Tensor mixed;
  for (size_t i = 0; i < experts.size(); ++i) {
    const auto is_own = inputs.at(1).eq(static_cast<int64_t>(i)).unsqueeze(1);
    const auto part = experts[i](x) * is_own.to(at::kDouble);
    mixed = mixed.defined() ? mixed + part : part;
  }
  return last(mixed);
}

std::vector<ddp::ParameterGroup> MixtureOfExperts::parameter_groups() const {
  return {
      {.parameters = {"*expert.*"},
       .mesh = expert_mesh_.value(),
       .divide_by = static_cast<double>(replicas_)}};
}

std::string MixtureOfExperts::name_in_twin(const std::string& name) const {
  return name.starts_with("expert.")
             ? "expert" + std::to_string(*own_expert_) + name.substr(6)
             : name;
}

dtensor::Placement MixtureOfExperts::placement_of(
    const std::string& name) const {
  if (name.starts_with("shared.")) {
    return dtensor::Shard(0);
  }
  return name == "expert.weight" ? dtensor::Placement(dtensor::Shard(1))
                                 : dtensor::Replicate();
}

double MixtureOfExperts::phase_of(const std::string& name, int64_t place)
    const {
  const auto twin = name_in_twin(name);
  if (!twin.starts_with("expert")) {
    return HarnessModel::phase_of(name, place);
  }
  return (twin.starts_with("expert0") ? 40.3 : 50.3) +
         (twin.ends_with("bias") ? 1 : 0);
}

HarnessModel::Inputs
MixtureOfExperts::make_input(int64_t rank, int64_t step, int64_t rows) const {
  return {
      harness_wave({rows, kInputDim}, rank, step),
      at::full({rows}, expert_of(rank), at::kLong)};
}

at::Tensor MixtureOfExperts::make_loss(
    const Inputs& /*inputs*/,
    const at::Tensor& output) {
  return output.pow(2).mean();
}

} // namespace weft::test
