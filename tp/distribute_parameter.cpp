#include "tp/distribute_parameter.h"

#include <torch/torch.h>

#include "dtensor/deferred_init.h"
#include "dtensor/dtensor.h"
#include "dtensor/gradient.h"
#include "dtensor/parameter_info.h"
#include "mesh/error.h"

namespace weft::tp {
namespace {

// parameters_ is protected; a member pointer named through a derived class may
// be applied to any module.
struct Parameters : torch::nn::Module {
  static auto& of(torch::nn::Module& module) {
    return module.*(&Parameters::parameters_);
  }
};

// The member that forward() reads, for the types whose members are known.
at::Tensor* known_member(torch::nn::Module& module, const std::string& name) {
  const auto pick = [&](auto* impl) -> at::Tensor* {
    if (!impl) {
      return nullptr;
    }
    if (name == "weight") {
      return &impl->weight;
    }
    if constexpr (requires { impl->bias; }) {
      return name == "bias" ? &impl->bias : nullptr;
    }
    return nullptr;
  };
  for (auto* member :
       {pick(module.as<torch::nn::LinearImpl>()),
        pick(module.as<torch::nn::EmbeddingImpl>()),
        pick(module.as<torch::nn::LayerNormImpl>())}) {
    if (member) {
      return member;
    }
  }
  return nullptr;
}

} // namespace

void distribute_parameter(
    torch::nn::Module& module,
    const std::string& name,
    at::Tensor& member,
    const mesh::DeviceMesh& mesh,
    const dtensor::Placements& placements,
    const std::string& path) {
  const auto fqn = path.empty() ? name : path + "." + name;
  if (!dtensor::is_dtensor(member)) {
    auto* known = known_member(module, name);
    WEFT_CHECK(
        known,
        "parallelize_module",
        mesh::ErrorContext{mesh.describe_rank()},
        "parameter \"",
        fqn,
        "\" of a ",
        module.name(),
        " is a plain tensor that cannot be replaced from outside. Build the "
        "model inside weft::dtensor::DeferredInit.");
    auto distributed =
        dtensor::distribute_tensor(member.detach(), mesh, placements);
    distributed.set_requires_grad(member.requires_grad());
    *known = distributed;
    Parameters::of(module)[name] = distributed;
    member = distributed;
  } else {
    dtensor::set_placements(member, mesh, placements);
  }
  dtensor::parameter_info(member).fqn = fqn;
  dtensor::keep_gradient_placed(member);
}

} // namespace weft::tp
