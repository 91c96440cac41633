#include "dtensor/dtensor.h"

#include <torch/torch.h>

#include "dtensor/autograd.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/gradient.h"
#include "dtensor/parameter_info.h"
#include "dtensor/redistribute.h"
#include "mesh/communicator.h"
#include "mesh/error.h"

namespace weft::dtensor {
namespace {

mesh::ErrorContext context_of(const mesh::DeviceMesh& mesh) {
  return {mesh.describe_rank()};
}

Placements normalized(const Placements& placements, int64_t ndim) {
  Placements result;
  for (const auto& placement : placements) {
    result.push_back(placement.normalized(ndim));
  }
  return result;
}

// Without global sizes every rank is taken to hold a part like this one.
std::vector<int64_t> scaled_sizes(
    const at::Tensor& local,
    const DTensorSpec& spec) {
  auto sizes = local.sizes().vec();
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (spec.placement(i).is_shard()) {
      sizes[spec.placement(i).tensor_dim()] *= spec.mesh().size(i);
    }
  }
  return sizes;
}

// All ranks must have parts of one shape and dtype for sizes to be inferred.
void check_locals(const at::Tensor& local, const mesh::DeviceMesh& mesh) {
  std::vector<int64_t> shape = local.sizes().vec();
  shape.push_back(static_cast<int64_t>(local.scalar_type()));
  const auto mine = at::tensor(shape, at::kLong);
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    auto ndims = at::empty({mesh.size(i)}, at::kLong);
    const auto ndim = at::tensor({local.dim()}, at::kLong);
    mesh.group(i).all_gather(ndims, ndim, "from_local").wait();
    WEFT_CHECK(
        ndims.eq(local.dim()).all().item<bool>(),
        "from_local",
        context_of(mesh),
        "ranks hold tensors of different numbers of dims along mesh dim \"",
        mesh.mesh_dim_names()[i],
        "\".");
    auto all = at::empty({mesh.size(i), mine.numel()}, at::kLong);
    mesh.group(i).all_gather(all, mine, "from_local").wait();
    WEFT_CHECK(
        all.eq(mine).all().item<bool>(),
        "from_local",
        context_of(mesh),
        "ranks hold parts of different sizes or dtypes along mesh dim \"",
        mesh.mesh_dim_names()[i],
        "\"; this rank has ",
        local.sizes(),
        ". Give options.sizes.");
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
      "[spec_of] not a DTensor but a plain tensor of sizes ",
      tensor.sizes(),
      ". Make one with distribute_tensor() or from_local().");
  return impl->spec();
}

at::Tensor from_local(
    const at::Tensor& local,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const FromLocalOptions& options) {
  WEFT_CHECK(
      !is_dtensor(local),
      "from_local",
      context_of(mesh),
      "the tensor is a DTensor already: ",
      describe(local),
      ". Use redistribute().");
  const auto ndim =
      options.sizes ? static_cast<int64_t>(options.sizes->size()) : local.dim();
  const DTensorSpec spec(mesh, normalized(placements, ndim));
  if (options.run_check && !options.sizes) {
    check_locals(local, mesh);
  }
  const auto sizes = options.sizes.value_or(scaled_sizes(local, spec));
  const auto expected = local_box(spec, sizes).sizes;
  WEFT_CHECK(
      local.sizes() == c10::IntArrayRef(expected),
      "from_local",
      context_of(mesh),
      "local sizes == this rank's part: ",
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
    grad = normalized(*options.grad_placements, ndim);
  }
  return leave_local(local, spec, sizes, strides, "from_local", grad);
}

at::Tensor to_local(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements) {
  const auto& spec = spec_of(dtensor);
  const auto grad = grad_placements
                        ? normalized(*grad_placements, dtensor.dim())
                        : spec.without_partial().placements();
  return enter_local(dtensor, spec, grad, "to_local");
}

at::Tensor full_tensor(const at::Tensor& dtensor) {
  const auto& spec = spec_of(dtensor);
  const Placements whole(spec.mesh_ndim(), Replicate());
  return to_local(redistribute(dtensor, whole));
}

at::Tensor redistribute(
    const at::Tensor& dtensor,
    const Placements& placements) {
  const auto target =
      spec_of(dtensor).with(normalized(placements, dtensor.dim()));
  const auto name = parameter_name(dtensor);
  auto result =
      redistribute_to(dtensor, target, name.empty() ? "redistribute" : name);
  // A part of a replicated tensor may be a view of it, which autograd does not
  // know of: a write to one must not change the other.
  const auto& source = dtensor_impl(dtensor)->local();
  auto* impl = dtensor_impl(result);
  if (!result.is_same(dtensor) && impl->local().is_alias_of(source)) {
    impl->reset_local(impl->local().clone(), target);
  }
  return result;
}

at::Tensor distribute_tensor(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    std::optional<int64_t> src_data_rank) {
  WEFT_CHECK(
      !is_dtensor(tensor),
      "distribute_tensor",
      context_of(mesh),
      "the tensor is a DTensor already: ",
      describe(tensor),
      ". Use redistribute().");
  WEFT_CHECK(
      tensor.is_leaf(),
      "distribute_tensor",
      context_of(mesh),
      "the tensor is not a leaf of the graph. Detach it, or use from_local().");
  const at::NoGradGuard no_grad;
  const DTensorSpec whole(mesh, Placements(mesh.ndim(), Replicate()));
  const DTensorSpec spec(mesh, normalized(placements, tensor.dim()));
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
  // Neither share memory with the caller nor keep the whole alive for a part.
  const bool copy =
      local.is_alias_of(tensor) ||
      (local.is_alias_of(source) && local.numel() != source.numel());
  auto result = leave_local(
      copy ? local.clone() : local,
      spec,
      tensor.sizes(),
      dense_strides(tensor.sizes(), tensor.strides()),
      "distribute_tensor");
  result.set_requires_grad(tensor.requires_grad());
  keep_gradient_placed(result);
  return result;
}

std::string describe(const at::Tensor& tensor) {
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
