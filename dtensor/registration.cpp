#include "dtensor/tensor/registration.h"

#include <set>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/fused/fused_ops.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/random_ops.h"
#include "dtensor/kernels/region.h"
#include "dtensor/ops/special_ops.h"
#include "dtensor/rules/rule.h"
#include "dtensor/tensor/libtorch_overrides.h"

namespace weft::dtensor {
namespace {

// Registers the kernels above autograd (linear, embedding, norms, attention,
// losses and related ops) and returns their full names.
std::set<std::string> register_kernels(
    torch::Library& above,
    torch::Library& below) {
  link_libtorch_overrides();
  register_rms_norm();
  register_attention();
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
  add("embedding_bag", TORCH_FN(kernels::embedding_bag_unpadded));
  add("embedding_bag.padding_idx", TORCH_FN(kernels::embedding_bag));
  add("value_selecting_reduction_backward",
      TORCH_FN(kernels::value_selecting_reduction_backward));
  add("one_hot", TORCH_FN(kernels::one_hot));
  names.merge(kernels::register_casts(above, below));
  kernels::register_mean_losses(above);
  names.merge(kernels::register_gradients(above, below));
  kernels::register_elementwise_losses(above);
  names.merge(kernels::register_random(above, below));
  names.merge(kernels::register_out_forms(below));
  names.merge(kernels::register_regions(above, below));
  names.merge(kernels::register_own_tensors(above, below));
  return names;
}

// Returns true if libtorch decomposes an op into others, which then have
// kernels for DTensors. A few ops (silu_backward) have a decomposition and also
// a kernel; with a rule they run as one op.
bool is_composed(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(
             c10::DispatchKey::CompositeImplicitAutograd) &&
         !(op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && find_rule(op));
}

// The registered kernels. They are kept until the process exits, because a
// torch::Library unregisters its kernels when it is destroyed.
struct DispatchRegistration {
  torch::Library below_autograd{
      torch::Library::IMPL,
      "aten",
      c10::DispatchKey::PrivateUse3,
      __FILE__,
      __LINE__};
  torch::Library above_autograd{
      torch::Library::IMPL,
      "aten",
      c10::DispatchKey::AutogradPrivateUse3,
      __FILE__,
      __LINE__};
  // Fallbacks for ops of other namespaces. An op without a rule is refused like
  // one of aten. An op without a gradient formula is reported in backward, as
  // on other devices.
  torch::Library others{
      torch::Library::IMPL,
      "_",
      c10::DispatchKey::PrivateUse3,
      __FILE__,
      __LINE__};
  torch::Library others_above_autograd{
      torch::Library::IMPL,
      "_",
      c10::DispatchKey::AutogradPrivateUse3,
      __FILE__,
      __LINE__};
  torch::Library deferred{
      torch::Library::IMPL,
      "_",
      c10::DispatchKey::DeferredInit,
      __FILE__,
      __LINE__};

  DispatchRegistration() {
    auto taken = register_kernels(above_autograd, below_autograd);
    taken.merge(register_special_ops(below_autograd));
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.rfind("aten::", 0) != 0) {
        continue;
      }
      const auto op = c10::Dispatcher::singleton().findOp(name);
      const auto full = c10::toString(name);
      if (op && op->hasSchema() && !taken.contains(full) && !is_composed(*op)) {
        below_autograd.impl(
            full.c_str(),
            torch::CppFunction::makeFromBoxedFunction<&dispatch_boxed>());
      }
    }
    others.fallback(
        torch::CppFunction::makeFromBoxedFunction<&dispatch_boxed>());
    others_above_autograd.fallback(
        torch::autograd::basicAutogradNotImplementedFallback());
    register_deferred_init(deferred);
  }
};

} // namespace

void ensure_dispatch_registered() {
  static const DispatchRegistration registration;
}

} // namespace weft::dtensor
