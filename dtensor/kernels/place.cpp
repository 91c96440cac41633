#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/spec/mesh_arguments.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_hooks.h"
#include "dtensor/tensor/parameter_info.h"

namespace weft::dtensor {
namespace kernels {

DTensorSpec common_spec(std::initializer_list<const at::Tensor*> tensors) {
  for (const auto* tensor : tensors) {
    if (tensor) {
      before_forward_use(*tensor);
    }
  }
  const DTensorSpec* unplaced = nullptr;
  for (const auto* tensor : tensors) {
    const auto* impl = tensor ? dtensor_impl(*tensor) : nullptr;
    if (impl && impl->spec().mesh_ndim() != 0) {
      return impl->spec();
    }
    if (impl && unplaced == nullptr) {
      unplaced = &impl->spec();
    }
  }
  // An operand's own spec is returned, so that the plans that are cached in its
  // mesh are found again.
  return unplaced != nullptr ? *unplaced : DTensorSpec();
}

namespace {

std::string describe_operands(std::initializer_list<Operand> operands) {
  std::string text = "(";
  for (const auto& operand : operands) {
    if (operand.tensor && operand.tensor->defined()) {
      text += (text.size() > 1 ? "; " : "") + describe(*operand.tensor);
    }
  }
  return text + ")";
}

void refuse_other_mesh(
    std::string_view op,
    const DTensorSpec& common,
    const mesh::DeviceMesh& other,
    std::initializer_list<Operand> operands) {
  TORCH_CHECK_VALUE(
      false,
      "[",
      op,
      "] mixes meshes: ",
      describe_meshes(common.mesh(), other),
      "; operands ",
      describe_operands(operands),
      ". Bring them to one mesh first: full_tensor(x), then "
      "distribute_tensor(). (",
      common.mesh().describe_rank(),
      ")");
}

void refuse_plain(
    std::string_view op,
    const DTensorSpec& common,
    const at::Tensor& plain,
    std::initializer_list<Operand> operands) {
  TORCH_CHECK_VALUE(
      false,
      "[",
      op,
      "] mixes DTensors with a plain tensor of sizes ",
      plain.sizes(),
      "; operands ",
      describe_operands(operands),
      ". Make the plain tensor a DTensor with distribute_tensor() (full "
      "tensor) or from_local() (local tensor), or use an ImplicitReplication "
      "scope if every rank has the full tensor. (",
      common.mesh().describe_rank(),
      ")");
}

} // namespace

void check_operands(
    std::string_view op,
    const DTensorSpec& common,
    std::initializer_list<Operand> operands) {
  if (common.mesh_ndim() == 0) {
    return;
  }
  for (const auto& operand : operands) {
    if (!operand.tensor || !operand.tensor->defined()) {
      continue;
    }
    const auto* impl = dtensor_impl(*operand.tensor);
    if (impl && impl->spec().mesh_ndim() != 0) {
      if (!(impl->spec().mesh() == common.mesh())) {
        refuse_other_mesh(op, common, impl->spec().mesh(), operands);
      }
    } else if (
        !impl && operand.tensor->dim() != 0 && !operand.placed_by_style &&
        !implicit_replication_enabled()) {
      refuse_plain(op, common, *operand.tensor, operands);
    }
  }
}

at::Tensor place(
    const at::Tensor& tensor,
    const DTensorSpec& like,
    const std::optional<Placements>& placements) {
  const auto* impl = dtensor_impl(tensor);
  if (impl && impl->spec().mesh_ndim() == like.mesh_ndim()) {
    return tensor;
  }
  const auto where =
      placements.value_or(Placements(like.mesh_ndim(), Replicate()));
  if (!impl) {
    return from_local(tensor, like.mesh(), where);
  }
  // An unplaced DTensor counts as replicated, and so does its gradient.
  auto placed = from_local_impl(
      to_local(tensor),
      like.with(Placements(like.mesh_ndim(), Replicate())),
      tensor.sizes(),
      tensor.strides(),
      "place");
  dtensor_impl(placed)->parameter_hooks = impl->parameter_hooks;
  return placed;
}

std::string label(const char* op, const at::Tensor& parameter) {
  auto name = parameter_name(parameter);
  return name.empty() ? op : name;
}

} // namespace kernels

} // namespace weft::dtensor
