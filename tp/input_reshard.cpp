#include "tp/input_reshard.h"

#include <memory>
#include <unordered_set>

#include <torch/torch.h>

#include "dtensor/scopes/module_call.h"
#include "dtensor/scopes/saved_tensor_hooks.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::tp {
namespace {

using Packed = dtensor::SavedTensorsHooks::Packed;
using Memory = std::unordered_set<const c10::StorageImpl*>;

// A saved tensor, or this rank's shard of it if `is_part` is true.
struct SavedPart {
  at::Tensor tensor;
  bool is_part;
};

const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return dtensor::dtensor_impl(tensor)
      ->local()
      .storage()
      .unsafeGetStorageImpl();
}

// Returns the memory of parameters. They stay allocated, so sharding them would
// save nothing.
Memory memory_of_parameters(const torch::nn::Module& module) {
  Memory memory;
  for (const auto& parameter : module.parameters()) {
    if (dtensor::is_dtensor(parameter)) {
      memory.insert(memory_of(parameter));
    }
  }
  return memory;
}

class Resharding {
 public:
  Resharding(mesh::DeviceMesh mesh, int64_t tensor_dim)
      : mesh_(std::move(mesh)), tensor_dim_(tensor_dim) {}

  Packed pack(const at::Tensor& tensor, const Memory& parameters) const {
    if (!can_shard(tensor) || parameters.contains(memory_of(tensor))) {
      return std::make_shared<SavedPart>(tensor, false);
    }
    const at::NoGradGuard no_grad;
    const dtensor::Placements cut(mesh_.ndim(), dtensor::Shard(tensor_dim_));
    auto part = dtensor::redistribute(tensor, cut);
    if (memory_of(part) == memory_of(tensor)) {
      part = part.clone(); // A view would keep all of it.
    }
    return std::make_shared<SavedPart>(part, true);
  }

  at::Tensor unpack(const Packed& packed) const {
    const auto& saved = *std::static_pointer_cast<SavedPart>(packed);
    if (!saved.is_part) {
      return saved.tensor;
    }
    const at::NoGradGuard no_grad;
    return dtensor::redistribute(
        saved.tensor, dtensor::Placements(mesh_.ndim(), dtensor::Replicate()));
  }

 private:
  bool can_shard(const at::Tensor& tensor) const {
    if (!dtensor::is_dtensor(tensor)) {
      return false;
    }
    const auto spec = dtensor::spec_of(tensor);
    const auto dim = tensor_dim_ < 0 ? tensor_dim_ + tensor.dim() : tensor_dim_;
    return spec.mesh_ndim() != 0 && spec.mesh() == mesh_ &&
           spec.is_replicated() && dim >= 0 && dim < tensor.dim() &&
           tensor.numel() >= mesh_.size();
  }

  mesh::DeviceMesh mesh_;
  int64_t tensor_dim_;
};

} // namespace

void input_reshard(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    std::optional<int64_t> input_reshard_dim) {
  if (!input_reshard_dim || mesh.size() == 1) {
    return;
  }
  const auto resharding =
      std::make_shared<const Resharding>(mesh, *input_reshard_dim);
  // The module owns the hooks, so the reference to it stays valid.
  dtensor::module_hooks(module).around.emplace_back(
      [resharding, &module](const dtensor::ModuleHooks::Forward& forward) {
        const dtensor::SavedTensorsHooks hooks(
            [resharding, parameters = memory_of_parameters(module)](
                const at::Tensor& tensor) {
              return resharding->pack(tensor, parameters);
            },
            [resharding](const Packed& packed) {
              return resharding->unpack(packed);
            });
        return forward();
      });
}

} // namespace weft::tp
