#include "dtensor/tensor/dtensor.h"

#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/spec/mesh_arguments.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/cross_rank_checks.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/gradient.h"
#include "dtensor/tensor/parameter_hooks.h"
#include "dtensor/tensor/parameter_info.h"
#include "mesh/communicator/communicator.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

DTensorSpec make_spec(
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    c10::IntArrayRef sizes) {
  return fitted(
      DTensorSpec(
          mesh, normalized(placements, static_cast<int64_t>(sizes.size()))),
      sizes);
}

void check_source(
    const mesh::DeviceMesh& mesh,
    std::optional<int64_t> src_data_rank) {
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    WEFT_CHECK(
        !src_data_rank ||
            (*src_data_rank >= 0 && *src_data_rank < mesh.size(i)),
        "distribute_tensor",
        context_of(mesh),
        "src_data_rank must be at least 0 and less than the size of mesh dim "
        "\"",
        mesh.mesh_dim_names()[i],
        "\": ",
        *src_data_rank,
        " vs ",
        mesh.size(i),
        ". Pass a rank within the mesh dim's group, not a global rank.");
  }
}

void check_distributable(const at::Tensor& tensor, const DTensorSpec& spec) {
  const auto& mesh = spec.mesh();
  WEFT_CHECK(
      tensor.is_leaf(),
      "distribute_tensor",
      context_of(mesh),
      "the tensor is not a leaf of the graph. Detach it, or use from_local().");
  check_no_mixed_partials(spec.placements(), mesh, "distribute_tensor");
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    if (spec.placement(i).is_partial() && mesh.size(i) > 1) {
      check_partial_form(spec.placement(i).reduce_op(), tensor.scalar_type());
    }
  }
}

} // namespace

bool is_dtensor(const at::Tensor& tensor) {
  return dtensor_impl(tensor) != nullptr;
}

const DTensorSpec& spec_of(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  TORCH_CHECK_VALUE(
      impl != nullptr,
      "[spec_of] not a DTensor but ",
      tensor.defined() ? c10::str("a plain tensor of sizes ", tensor.sizes())
                       : "an undefined tensor",
      ". Make one with distribute_tensor() or from_local().");
  // A caller that reads the spec is about to use the tensor.
  if (impl->parameter_hooks) {
    impl->parameter_hooks->before_use(/*is_forward=*/false);
  }
  return impl->spec();
}

at::Tensor from_local(
    const at::Tensor& local,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const FromLocalOptions& options) {
  if (options.run_check) {
    check_local_tensors_match(local, mesh, placements, options);
  }
  check_is_dense(local, mesh, "from_local");
  WEFT_CHECK(
      !is_dtensor(local),
      "from_local",
      context_of(mesh),
      "the tensor is already a DTensor: ",
      describe(local),
      ". Use redistribute().");
  check_no_mixed_partials(placements, mesh, "from_local");
  const auto ndim =
      options.sizes ? static_cast<int64_t>(options.sizes->size()) : local.dim();
  const DTensorSpec given(mesh, normalized(placements, ndim));
  const auto sizes =
      options.sizes ? *options.sizes : infer_global_sizes(local.sizes(), given);
  const auto spec = fitted(given, sizes);
  const auto expected = local_sizes(spec, sizes);
  WEFT_CHECK(
      local.sizes() == c10::IntArrayRef(expected),
      "from_local",
      context_of(mesh),
      "the local tensor must have the sizes of this rank's shard: ",
      local.sizes(),
      " vs ",
      c10::IntArrayRef(expected),
      " of global ",
      c10::IntArrayRef(sizes),
      " under ",
      to_string(spec.placements()),
      ".");
  const auto strides =
      options.strides.value_or(dense_strides(sizes, local.strides()));
  std::optional<Placements> grad;
  if (options.grad_placements) {
    grad = make_spec(mesh, *options.grad_placements, sizes).placements();
  }
  return from_local_impl(local, spec, sizes, strides, "from_local", grad);
}

at::Tensor to_local(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements) {
  const auto& spec = spec_of(dtensor);
  const auto grad =
      grad_placements
          ? make_spec(spec.mesh(), *grad_placements, dtensor.sizes())
          : spec.without_partial();
  return to_local_impl(dtensor, spec, grad.placements(), "to_local");
}

at::Tensor full_tensor(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements) {
  const auto& spec = spec_of(dtensor);
  const Placements whole(spec.mesh_ndim(), Replicate());
  return to_local(redistribute(dtensor, whole), grad_placements);
}

at::Tensor distribute_tensor(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    std::optional<int64_t> src_data_rank) {
  check_source(mesh, src_data_rank);
  if (src_data_rank) {
    check_full_tensors_match(tensor, mesh, placements);
  }
  check_is_dense(tensor, mesh, "distribute_tensor");
  const auto spec = make_spec(mesh, placements, tensor.sizes());
  if (is_dtensor(tensor)) {
    WEFT_CHECK(
        spec_of(tensor) == spec,
        "distribute_tensor",
        context_of(mesh),
        "the tensor is already a DTensor: ",
        describe(tensor),
        ". Use redistribute().");
    return tensor;
  }
  check_distributable(tensor, spec);
  const at::NoGradGuard no_grad;
  const DTensorSpec whole(mesh, Placements(mesh.ndim(), Replicate()));
  auto source = tensor.detach();
  if (src_data_rank && mesh.size() > 1) {
    source = source.clone(at::MemoryFormat::Contiguous);
    for (int64_t i = 0; i < mesh.ndim(); ++i) {
      mesh.group(i)
          .broadcast(source, *src_data_rank, "distribute_tensor")
          .wait();
    }
  }
  auto local = redistribute_local(
      source, tensor.sizes(), whole, spec, "distribute_tensor");
  // The result must not share memory with the caller's tensor, and a part must
  // not keep the full tensor alive.
  const bool copy =
      local.is_alias_of(tensor) ||
      (local.is_alias_of(source) && local.numel() != source.numel());
  auto result = from_local_impl(
      copy ? local.clone() : local,
      spec,
      tensor.sizes(),
      dense_strides(tensor.sizes(), tensor.strides()),
      "distribute_tensor");
  result.set_requires_grad(tensor.requires_grad());
  match_gradient_placement(result);
  return result;
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "an undefined tensor";
  }
  const auto* impl = dtensor_impl(tensor);
  const auto name = parameter_name(tensor);
  const auto prefix = name.empty() ? "" : "\"" + name + "\" ";
  if (!impl) {
    return c10::str(
        prefix, "Tensor ", tensor.sizes(), " ", tensor.scalar_type());
  }
  return c10::str(
      prefix,
      "DTensor ",
      tensor.sizes(),
      " ",
      tensor.scalar_type(),
      " ",
      impl->spec().to_string(),
      ", local ",
      impl->local().sizes());
}

} // namespace weft::dtensor
