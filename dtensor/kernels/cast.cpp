// Casts: the cast of a parameter has the parameter's name and layouts, and
// autocast casts an input only once.

#include <algorithm>
#include <array>

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/scopes/autocast.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_info.h"

namespace weft::dtensor::kernels {
namespace {

// Note [Casts]
// ~~~~~~~~~~~~
// Autocast runs before the kernels of this folder and calls them with casts of
// the user's tensors, so linear() gets a weight that is not a parameter.
// Therefore a parameter's cast has the name and the layouts of the parameter,
// and the cast of its t() is the t() of its cast, in which matmul() recognizes
// the parameter.
//
// Autocast keeps the casts of leaves only. An input that q, k and v use would
// be cast, and then gathered, once for each of them. So an Autocast scope keeps
// the first cast with the input, as Note [Shared redistribution] describes.
// Only autocast's kernels see it.

// Returns an address that identifies `dtype`. In an entry of
// DTensorImpl::shared it takes the place of the spec.
const void* cast_id(at::ScalarType dtype) {
  static constexpr std::array<char, 128> kTags{};
  return &kTags.at(static_cast<size_t>(dtype));
}

bool serves(const DTensorImpl::Shared& entry, const DTensorImpl::Shared& want) {
  return entry.spec_id == want.spec_id && entry.version == want.version &&
         entry.grad_mode == want.grad_mode;
}

template <class Cast>
at::Tensor
shared_cast(const at::Tensor& self, at::ScalarType dtype, const Cast& cast) {
  auto* impl = dtensor_impl(self);
  const bool graph = at::GradMode::is_enabled() && self.requires_grad();
  DTensorImpl::Shared want{
      .spec_id = cast_id(dtype),
      .grad_id = nullptr,
      .version = impl->version_counter().current_version(),
      .grad_mode = graph,
      .weak =
          c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(
              c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()),
      .strong = {},
      .writes = nullptr};
  const auto found = std::ranges::find_if(
      impl->shared, [&](const auto& entry) { return serves(entry, want); });
  if (found != impl->shared.end()) {
    return found->strong;
  }
  want.strong = cast();
  impl->shared.push_back(want);
  return want.strong;
}

bool is_shareable(const at::Tensor& self, at::ScalarType dtype) {
  return !self.is_leaf() && !self.is_inference() &&
         detail::is_cast_of_autocast(self.device().type(), dtype);
}

at::Tensor cast_above(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    bool non_blocking,
    std::optional<at::MemoryFormat> memory_format) {
  const bool is_cast = dtensor_impl(self) && dtype && !layout && !device;
  if (is_cast) {
    if (const auto weight = transposed_parameter(self); weight.defined()) {
      return at::_to_copy(weight, at::TensorOptions(*dtype)).t();
    }
  }
  const auto run = [&] {
    // Calls autograd's own kernel, like addmm().
    const auto others = keys.remove(c10::DispatchKey::AutogradPrivateUse3)
                            .add(c10::DispatchKey::AutogradOther)
                            .add(c10::DispatchKey::PrivateUse3);
    return at::_ops::_to_copy::redispatch(
        others,
        self,
        dtype,
        layout,
        device,
        pin_memory,
        non_blocking,
        memory_format);
  };
  return is_cast && is_shareable(self, *dtype) ? shared_cast(self, *dtype, run)
                                               : run();
}

void cast_below(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto self =
      torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
  dispatch_boxed(op, keys, stack);
  const auto* impl = dtensor_impl(self);
  auto* result = dtensor_impl(stack->back().toTensor());
  if (impl && result && impl->parameter_info && !result->parameter_info) {
    // The placement of the gradient is a matter of the parameter, not of its
    // cast.
    auto info = std::make_shared<ParameterInfo>(*impl->parameter_info);
    info->gradient_reduced_by_ddp = false;
    info->matches_gradient_placement = false;
    result->parameter_info = std::move(info);
  }
}

} // namespace

std::set<std::string> register_casts(
    torch::Library& above,
    torch::Library& below) {
  above.impl("_to_copy", TORCH_FN(cast_above));
  below.impl(
      "_to_copy", torch::CppFunction::makeFromBoxedFunction<&cast_below>());
  return {"aten::_to_copy"};
}

} // namespace weft::dtensor::kernels
