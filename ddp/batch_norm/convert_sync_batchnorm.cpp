#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include <torch/nn/modules/container/sequential.h>

#include "ddp/batch_norm/sync_batch_norm.h"
#include "dtensor/scopes/module_call.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

using torch::nn::SequentialImpl;

constexpr const char* kConvert = "convert_sync_batchnorm";

struct NormInSequential {
  SequentialImpl* sequential;
  std::string name;
  std::shared_ptr<torch::nn::Module> layer;
};

struct BatchNormLayers {
  std::vector<NormInSequential> in_sequentials;
  /// Fully qualified names and types of batch norm layers outside of
  /// Sequentials.
  std::vector<std::string> elsewhere;
};

SyncBatchNorm synchronised(
    const torch::nn::Module& layer,
    const std::shared_ptr<SyncBatchNormGroup>& channel) {
  const auto as = [&]<class Norm>(const Norm* norm) {
    return norm ? SyncBatchNorm(
                      std::make_shared<SyncBatchNormImpl>(*norm, channel))
                : SyncBatchNorm(nullptr);
  };
  if (auto norm = as(layer.as<torch::nn::BatchNorm1dImpl>())) {
    return norm;
  }
  if (auto norm = as(layer.as<torch::nn::BatchNorm2dImpl>())) {
    return norm;
  }
  return as(layer.as<torch::nn::BatchNorm3dImpl>());
}

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1dImpl>() ||
         module.as<torch::nn::BatchNorm2dImpl>() ||
         module.as<torch::nn::BatchNorm3dImpl>();
}

void find_norms(
    torch::nn::Module& module,
    const std::string& path,
    BatchNormLayers& found) {
  auto* sequential = module.as<SequentialImpl>();
  for (const auto& child : module.named_children()) {
    const auto name = path.empty() ? child.key() : path + "." + child.key();
    if (!is_batch_norm(*child.value())) {
      find_norms(*child.value(), name, found);
    } else if (sequential) {
      found.in_sequentials.push_back({sequential, child.key(), child.value()});
    } else {
      found.elsewhere.push_back(
          name + " (" + dtensor::module_type_name(*child.value()) + " of " +
          dtensor::module_type_name(module) + ")");
    }
  }
}

void replace(const NormInSequential& place, const SyncBatchNorm& norm) {
  const auto called = std::find_if(
      place.sequential->begin(), place.sequential->end(), [&](auto& each) {
        return each.ptr() == place.layer;
      });
  TORCH_INTERNAL_ASSERT(called != place.sequential->end(), place.name);
  *called = torch::nn::AnyModule(norm);
  place.sequential->replace_module(place.name, norm);
}

} // namespace

std::shared_ptr<SyncBatchNormGroup> convert_sync_batchnorm(
    torch::nn::Module& module,
    const mesh::DeviceMesh& dp_mesh) {
  BatchNormLayers found;
  find_norms(module, "", found);
  if (is_batch_norm(module)) {
    found.elsewhere.push_back(
        "the module itself (" + dtensor::module_type_name(module) + ")");
  }
  WEFT_CHECK(
      found.elsewhere.empty(),
      kConvert,
      mesh::ErrorContext{dp_mesh.describe_rank()},
      found.elsewhere.front(),
      found.elsewhere.size() > 1
          ? " and " + std::to_string(found.elsewhere.size() - 1) + " more"
          : "",
      " cannot be replaced, because C++ code calls a member by its declared "
      "type. Declare it as a weft::ddp::SyncBatchNorm, or put it into a "
      "torch::nn::Sequential.");
  if (found.in_sequentials.empty()) {
    return nullptr;
  }
  const auto channel = make_sync_batch_norm_group(dp_mesh);
  // A layer that several Sequentials share is replaced by one layer.
  std::unordered_map<const torch::nn::Module*, SyncBatchNorm> made;
  for (const auto& place : found.in_sequentials) {
    const auto [norm, is_new] = made.try_emplace(place.layer.get(), nullptr);
    if (is_new) {
      norm->second = synchronised(*place.layer, channel);
    }
    replace(place, norm->second);
  }
  return channel;
}

} // namespace weft::ddp
