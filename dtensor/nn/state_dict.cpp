#include "dtensor/nn/state_dict.h"

#include <vector>

#include <torch/nn/module.h>

#include "dtensor/spec/mesh_arguments.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

constexpr const char* kStateDictOp = "state_dict";

void check_slice(const at::Tensor& tensor, const mesh::DeviceMesh& mesh) {
  const auto& own = spec_of(tensor).mesh();
  WEFT_CHECK(
      own.root() == mesh.root(),
      kStateDictOp,
      context_of(mesh),
      describe(tensor),
      " is on a mesh whose root mesh is not that of ",
      mesh.to_string(),
      ". Take both from one DeviceMesh::create().");
  for (const auto& name : own.mesh_dim_names()) {
    WEFT_CHECK(
        mesh.has_mesh_dim(name),
        kStateDictOp,
        context_of(mesh),
        describe(tensor),
        " is sharded along mesh dim \"",
        name,
        "\", which ",
        mesh.to_string(),
        " does not have. Pass a mesh with all of its dims.");
  }
}

template <class Visit>
void for_each_tensor(const torch::nn::Module& module, const Visit& visit) {
  for (const auto& item : module.named_parameters()) {
    visit(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    visit(item.key(), item.value());
  }
}

bool is_placed(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  return impl && impl->spec().mesh_ndim() > 0;
}

} // namespace

namespace {

// Returns `view` with the version counter of `tensor`, so that caches of values
// computed from `tensor` detect writes to `view`.
at::Tensor with_version_of(const at::Tensor& tensor, at::Tensor view) {
  if (!tensor.is_inference() && !view.is_inference()) {
    view.unsafeGetTensorImpl()->set_version_counter(
        tensor.unsafeGetTensorImpl()->version_counter());
  }
  return view;
}

} // namespace

at::Tensor on_mesh(const at::Tensor& tensor, const mesh::DeviceMesh& mesh) {
  Placements placements(mesh.ndim(), Replicate());
  const auto* impl = dtensor_impl(tensor);
  if (!impl) {
    const auto plain = tensor.detach();
    return with_version_of(
        tensor,
        make_dtensor(
            plain,
            DTensorSpec(mesh, placements),
            plain.sizes(),
            dense_strides(plain.sizes(), plain.strides())));
  }
  check_materialized(tensor, kStateDictOp);
  const auto& spec = impl->spec();
  if (spec.mesh_ndim() > 0) {
    check_slice(tensor, mesh);
  }
  const auto& names = spec.mesh().mesh_dim_names();
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    placements[mesh.mesh_dim(names[i])] = spec.placement(i);
  }
  return with_version_of(
      tensor,
      make_dtensor(
          impl->local(),
          DTensorSpec(mesh, placements),
          impl->sizes(),
          impl->strides()));
}

mesh::DeviceMesh joint_mesh(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh) {
  const auto root = mesh.root();
  const auto& own = mesh.mesh_dim_names();
  std::set<std::string> used(own.begin(), own.end());
  for_each_tensor(module, [&](const auto&, const at::Tensor& tensor) {
    if (is_placed(tensor)) {
      check_slice(tensor, root);
      const auto& names = spec_of(tensor).mesh().mesh_dim_names();
      used.insert(names.begin(), names.end());
    }
  });
  std::vector<std::string> dims;
  for (const auto& name : root.mesh_dim_names()) {
    if (used.contains(name)) {
      dims.push_back(name);
    }
  }
  return root.slice(dims);
}

StateDict module_state_dict(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const std::set<std::string>& ignore) {
  StateDict result;
  for_each_tensor(module, [&](const auto& name, const at::Tensor& tensor) {
    if (tensor.defined() && !ignore.contains(name)) {
      result.emplace(name, on_mesh(tensor, mesh));
    }
  });
  return result;
}

} // namespace weft::dtensor
