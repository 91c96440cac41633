#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/autograd.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/parameter_info.h"

namespace weft::dtensor {
namespace kernels {

DTensorSpec common_spec(std::initializer_list<const at::Tensor*> tensors) {
  for (const auto* tensor : tensors) {
    const auto* impl = tensor ? dtensor_impl(*tensor) : nullptr;
    if (impl && impl->spec().mesh_ndim() != 0) {
      return impl->spec();
    }
  }
  return {};
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
  // Unplaced: whole on every rank, and its gradient is to be so too.
  return leave_local(
      to_local(tensor),
      like.with(Placements(like.mesh_ndim(), Replicate())),
      tensor.sizes(),
      tensor.strides(),
      "place");
}

std::string label(const char* op, const at::Tensor& parameter) {
  auto name = parameter_name(parameter);
  return name.empty() ? op : name;
}

} // namespace kernels

std::set<std::string> register_kernels(
    torch::Library& above,
    torch::Library& below) {
  std::set<std::string> names;
  const auto add = [&](const char* name, auto function) {
    above.impl(name, function);
    below.impl(name, function);
    names.insert(std::string("aten::") + name);
  };
  add("linear", TORCH_FN(kernels::linear));
  add("matmul", TORCH_FN(kernels::matmul));
  above.impl("addmm", TORCH_FN(kernels::addmm));
  add("embedding", TORCH_FN(kernels::embedding));
  add("rms_norm", TORCH_FN(kernels::rms_norm));
  add("layer_norm", TORCH_FN(kernels::layer_norm));
  add("scaled_dot_product_attention",
      TORCH_FN(kernels::scaled_dot_product_attention));
  add("cross_entropy_loss", TORCH_FN(kernels::cross_entropy_loss));
  return names;
}

} // namespace weft::dtensor
