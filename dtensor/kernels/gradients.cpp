// The gradients of cummax and cummin, of trace, and of the matrix exponential.
// libtorch creates plain tensors in them and mixes these with DTensors.

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {
namespace {

at::Tensor cummaxmin_backward(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& indices,
    int64_t dim) {
  return at::zeros_like(input).scatter_add(dim, indices, grad);
}

at::Tensor trace_backward(
    const at::Tensor& grad,
    c10::SymIntArrayRef symbolic_sizes) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(symbolic_sizes);
  const auto eye = at::eye(
      sizes.at(0),
      sizes.at(1),
      at::TensorOptions(grad.scalar_type()).device(grad.device()));
  return grad * place(eye, common_spec({&grad}));
}

// Returns the upper right block of exp([[A^H, G], [0, A^H]]).
// Source: N. Higham, Functions of Matrices, 2008, theorem 3.6.
at::Tensor exp_gradient(const at::Tensor& self, const at::Tensor& grad) {
  const auto adjoint = self.mH();
  const int64_t n = self.size(-1);
  const auto above = at::cat({adjoint, grad}, -1);
  const auto below = at::cat({at::zeros_like(adjoint), adjoint}, -1);
  return at::linalg_matrix_exp(at::cat({above, below}, -2))
      .narrow(-2, 0, n)
      .narrow(-1, n, n);
}

// The matrix exponential with a gradient that creates no plain tensor.
struct MatrixExp : torch::autograd::Function<MatrixExp> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& self) {
    context->save_for_backward({self});
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::linalg_matrix_exp(self);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& grads) {
    return {exp_gradient(context->get_saved_variables().at(0), grads[0])};
  }
};

at::Tensor linalg_matrix_exp(const at::Tensor& self) {
  return MatrixExp::apply(self);
}

// Returns the tensor with full matrices; the batch stays sharded. The gradients
// of factorizations write to diagonals of saved tensors, which is not possible
// if a matrix is sharded or Partial. So matrices are gathered before autograd
// saves them.
at::Tensor with_full_matrices(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  if (!impl) {
    return tensor;
  }
  auto placements = impl->spec().placements();
  for (auto& placement : placements) {
    const bool batch = placement.is_shard() && !placement.is_strided() &&
                       placement.tensor_dim() < tensor.dim() - 2;
    placement = batch ? placement : Replicate();
  }
  return redistribute_to(tensor, impl->spec().with(placements), "linalg");
}

void on_full_matrices(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = with_full_matrices(value.toTensor());
    }
  }
  // Calls autograd's own kernel, like addmm().
  op.redispatchBoxed(
      keys.remove(c10::DispatchKey::AutogradPrivateUse3)
          .add(c10::DispatchKey::AutogradOther)
          .add(c10::DispatchKey::PrivateUse3),
      stack);
}

} // namespace

std::set<std::string> register_gradients(
    torch::Library& above,
    torch::Library& below) {
  std::set<std::string> names;
  const auto add = [&](const char* name, auto function) {
    above.impl(name, function);
    below.impl(name, function);
    names.insert(std::string("aten::") + name);
  };
  add("cummaxmin_backward", TORCH_FN(cummaxmin_backward));
  add("trace_backward", TORCH_FN(trace_backward));
  add("matrix_exp_backward", TORCH_FN(exp_gradient));
  above.impl("linalg_matrix_exp", TORCH_FN(linalg_matrix_exp));
  for (const auto* name :
       {"_linalg_eigh",
        "linalg_eig",
        "_linalg_svd",
        "linalg_householder_product",
        "linalg_qr",
        "ormqr"}) {
    above.impl(
        name, torch::CppFunction::makeFromBoxedFunction<&on_full_matrices>());
  }
  return names;
}

} // namespace weft::dtensor::kernels
