// nn::MultiheadAttention appends zeros of its own making to keys, values and
// masks (add_zero_attn, add_bias_kv). Zeros are the same however they lie, so a
// plain tensor of nothing else counts as whole.

#include <algorithm>

#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/region.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {
namespace {

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && !is_dtensor(tensor);
}

bool is_plain_zeros(const at::Tensor& tensor) {
  return is_plain(tensor) && !tensor.requires_grad() &&
         !tensor.any().item<bool>();
}

} // namespace

at::Tensor
cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, int64_t dim) {
  const auto others = keys.remove(c10::DispatchKey::AutogradPrivateUse3)
                          .add(c10::DispatchKey::AutogradOther)
                          .add(c10::DispatchKey::PrivateUse3);
  if (std::ranges::none_of(tensors, is_plain)) {
    return at::_ops::cat::redispatch(others, tensors, dim);
  }
  std::vector<at::Tensor> placed(tensors.begin(), tensors.end());
  DTensorSpec common;
  for (const auto& tensor : placed) {
    common = common.mesh_ndim() == 0 ? common_spec({&tensor}) : common;
  }
  for (auto& tensor : placed) {
    if (common.mesh_ndim() != 0 && is_plain_zeros(tensor)) {
      tensor = place(tensor, common);
    }
  }
  return at::_ops::cat::redispatch(others, placed, dim);
}

} // namespace weft::dtensor::kernels
