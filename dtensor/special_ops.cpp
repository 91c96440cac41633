#include "dtensor/special_ops.h"

#include <numeric>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/autograd.h"
#include "dtensor/deferred_init.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/joined_reductions.h"
#include "dtensor/parameter_info.h"
#include "dtensor/redistribute.h"

namespace weft::dtensor {
namespace {

using Stack = torch::jit::Stack;

DTensorSpec replicated(const DTensorSpec& spec) {
  return spec.with(Placements(spec.mesh_ndim(), Replicate()));
}

at::Tensor local_of(const at::Tensor& tensor, const DTensorSpec& spec) {
  const auto* impl = dtensor_impl(tensor);
  if (!impl) {
    return tensor;
  }
  require_values(tensor, "foreach");
  if (impl->spec().mesh_ndim() == 0 || impl->spec() == spec) {
    return impl->local();
  }
  return redistribute_local(
      impl->local(), impl->sizes(), impl->spec(), spec, "foreach");
}

// --- item, equal, is_same_size ---------------------------------------------

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto& spec = spec_of(self);
  TORCH_CHECK_VALUE(
      !spec.has_shard(),
      "[item] ",
      describe(self),
      " is cut: no rank knows its value alone. Use full_tensor(x).item().");
  return local_of(self, spec.without_partial()).item();
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  const at::AutoDispatchBelowADInplaceOrView below;
  TORCH_CHECK_VALUE(
      is_dtensor(self) && is_dtensor(other),
      "[equal] mixes a DTensor with a plain tensor. Compare full_tensor(x).");
  if (self.sizes() != other.sizes() ||
      self.scalar_type() != other.scalar_type()) {
    return false;
  }
  const auto spec = spec_of(self).without_partial();
  const bool same = at::equal(local_of(self, spec), local_of(other, spec));
  auto flag = at::full({1}, same ? 1 : 0, at::kLong);
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (spec.placement(i).is_shard()) {
      spec.mesh().group(i).all_reduce(flag, ReduceOp::kMin, "equal").wait();
    }
  }
  return flag.item<int64_t>() == 1;
}

bool is_same_size(const at::Tensor& self, const at::Tensor& other) {
  return self.sizes() == other.sizes();
}

// A view with the strides libtorch worked out already; the local tensor works
// out its own.
at::Tensor reshape_alias(
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return self.view_symint(size);
}

// Every squeeze is squeeze.dims, which has a rule: without the dims' names a
// local size of 1 would be taken for a global one.
at::Tensor squeeze(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<int64_t> dims(self.dim());
  std::iota(dims.begin(), dims.end(), 0);
  return at::squeeze(self, dims);
}

at::Tensor squeeze_dim(const at::Tensor& self, int64_t dim) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::squeeze(self, at::IntArrayRef{dim});
}

// --- ops on lists of tensors ------------------------------------------------

std::vector<at::Tensor> foreach_norm(
    at::TensorList self,
    const at::Scalar& ord,
    std::optional<at::ScalarType> dtype) {
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<at::Tensor> norms;
  for (const auto& tensor : self) {
    norms.push_back(at::linalg_vector_norm(tensor, ord, {}, false, dtype));
  }
  return norms;
}

// foreach ops and fused optimizers work on the i-th tensors of their lists
// together: those are brought to where the first list's tensor lies, and run
// on the local tensors in one call.

bool carries_pending_sum(const std::string& name) {
  for (const auto* linear :
       {"_foreach_neg",
        "_foreach_zero",
        "_foreach_copy",
        "_foreach_mul",
        "_foreach_div"}) {
    if (name.starts_with(std::string("aten::") + linear)) {
      return true;
    }
  }
  return false;
}

std::vector<DTensorSpec> list_specs(
    const c10::OperatorHandle& op,
    const std::vector<at::Tensor>& first) {
  const auto& name = op.schema().name();
  const bool writes = op.schema().arguments()[0].alias_info() != nullptr;
  std::vector<DTensorSpec> specs;
  for (const auto& tensor : first) {
    const auto& spec = spec_of(tensor);
    if (spec.has_partial() && !carries_pending_sum(name)) {
      TORCH_CHECK_VALUE(
          !writes,
          "[",
          name,
          "] cannot write to a pending sum: ",
          describe(tensor),
          ". Redistribute it first.");
      specs.push_back(spec.without_partial());
    } else {
      specs.push_back(spec);
    }
  }
  return specs;
}

at::Tensor place_like(const at::Tensor& tensor, const DTensorSpec& spec) {
  const auto* impl = dtensor_impl(tensor);
  if (!impl || tensor.dim() == 0) {
    return local_of(tensor, replicated(spec));
  }
  return local_of(tensor, spec);
}

void dispatch_foreach(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto& schema = op.schema();
  const auto first =
      stack->end() - static_cast<int64_t>(schema.arguments().size());
  TORCH_CHECK_VALUE(
      first->isTensorList(),
      "[",
      schema.name(),
      "] the first argument is to be a list of DTensors.");
  const auto list = first->toTensorVector();
  for (const auto& tensor : list) {
    TORCH_CHECK_VALUE(
        is_dtensor(tensor),
        "[",
        schema.name(),
        "] mixes DTensors with a plain tensor of sizes ",
        tensor.sizes(),
        " in its first list.");
  }
  const auto specs = list_specs(op, list);
  for (auto it = first; it != stack->end(); ++it) {
    if (it->isTensorList()) {
      auto tensors = it->toTensorVector();
      for (size_t i = 0; i < tensors.size(); ++i) {
        tensors[i] = place_like(
            tensors[i], specs[tensors.size() == list.size() ? i : 0]);
      }
      *it = std::move(tensors);
    } else if (it->isTensor() && it->toTensor().defined()) {
      *it = place_like(it->toTensor(), specs.at(0));
    }
  }
  op.callBoxed(stack);
  for (auto it = stack->end() - static_cast<int64_t>(schema.returns().size());
       it != stack->end();
       ++it) {
    auto results = it->toTensorVector();
    for (size_t i = 0; i < results.size(); ++i) {
      results[i] = make_dtensor(
          results[i], specs[i], list[i].sizes(), list[i].strides());
    }
    *it = std::move(results);
  }
}

bool is_list_op(const std::string& name) {
  return name.starts_with("aten::_foreach_") || name == "aten::_fused_adamw_" ||
         name == "aten::_fused_adam_" || name == "aten::_fused_sgd_" ||
         name == "aten::_fused_adagrad_";
}

} // namespace

std::set<std::string> register_special_ops(torch::Library& library) {
  std::set<std::string> taken;
  const auto add = [&](const char* name, auto function) {
    library.impl(name, function);
    taken.insert(std::string("aten::") + name);
  };
  add("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  add("equal", TORCH_FN(equal));
  add("is_same_size", TORCH_FN(is_same_size));
  add("_reshape_alias", TORCH_FN(reshape_alias));
  add("squeeze", TORCH_FN(squeeze));
  add("squeeze.dim", TORCH_FN(squeeze_dim));
  register_joined_reductions(library, taken);
  add("_foreach_norm.Scalar", TORCH_FN(foreach_norm));
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    const auto full = name.overload_name.empty()
                          ? name.name
                          : name.name + "." + name.overload_name;
    if (!is_list_op(name.name) || !op || !op->hasSchema() ||
        taken.contains(full) ||
        op->hasKernelForDispatchKey(
            c10::DispatchKey::CompositeImplicitAutograd)) {
      continue;
    }
    library.impl(
        full.c_str(),
        torch::CppFunction::makeFromBoxedFunction<&dispatch_foreach>());
    taken.insert(full);
  }
  return taken;
}

} // namespace weft::dtensor
