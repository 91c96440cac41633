#include "ddp/model_averaging/average_parameters.h"

#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

constexpr const char* kAverageOp = "average_parameters";

/// Throws if ranks have different numbers of parameters, because
/// parts_to_average() reduces one flag per parameter.
void check_same_number(int64_t number, mesh::Communicator& group) {
  const auto extremes = at::tensor({number, -number}, at::kLong);
  group.all_reduce(extremes, mesh::ReduceOp::kMax, kAverageOp).wait();
  const auto* greatest = extremes.const_data_ptr<int64_t>();
  WEFT_CHECK(
      -greatest[1] == greatest[0],
      kAverageOp,
      (mesh::ErrorContext{mesh::detail::concat(
          "rank ",
          group.rank(),
          "/",
          group.size(),
          ", group \"",
          group.name(),
          "\"")}),
      "parameters: got ",
      number,
      " on this rank, and ",
      -greatest[1],
      " to ",
      greatest[0],
      " over all ranks, expected the same number. Pass the same parameters in "
      "the same order on every rank.");
}

std::vector<at::Tensor> parts_to_average(
    const std::vector<at::Tensor>& parameters,
    mesh::Communicator& group) {
  const auto flags =
      at::zeros({static_cast<int64_t>(parameters.size())}, at::kInt);
  auto* has_gradient = flags.mutable_data_ptr<int32_t>();
  for (size_t i = 0; i < parameters.size(); ++i) {
    has_gradient[i] = parameters[i].grad().defined();
  }
  group.all_reduce(flags, mesh::ReduceOp::kMax, kAverageOp).wait();
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (has_gradient[i]) {
      parts.push_back(data_parallel::local_part(parameters[i]));
    }
  }
  return parts;
}

} // namespace

void average_parameters(
    const std::vector<at::Tensor>& parameters,
    mesh::Communicator group) {
  if (group.size() == 1) {
    return;
  }
  const at::NoGradGuard no_grad;
  check_same_number(static_cast<int64_t>(parameters.size()), group);
  const auto parts = parts_to_average(parameters, group);
  group.all_reduce_coalesced(parts, mesh::ReduceOp::kAvg, kAverageOp).wait();
}

std::vector<at::Tensor> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : groups) {
    parameters.insert(
        parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

} // namespace weft::ddp
