#include "dtensor/ops/foreach_call.h"

#include <ATen/MemoryOverlap.h>
#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/scopes/comm_debug.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/copied_view.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/implicit_redistribution.h"

namespace weft::dtensor {
namespace {

DTensorSpec replicated(const DTensorSpec& spec) {
  return spec.with(Placements(spec.mesh_ndim(), Replicate()));
}

bool is_ready(const DTensorImpl& impl) {
  return !impl.deferred && !impl.copied_view;
}

// Returns true if elements of the tensor share memory, so that it must not be
// written to. The global strides decide, because the local part need not show
// it on every rank.
bool overlaps(DTensorImpl& impl) {
  return !impl.is_non_overlapping_and_dense() &&
         at::has_internal_overlap(&impl) == at::MemOverlap::Yes;
}

bool is_full_scalar(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  return !impl || (!impl->deferred && impl->spec().is_replicated());
}

} // namespace

bool is_ready_first(DTensorImpl& impl) {
  return is_ready(impl) && !impl.spec().has_partial() && !overlaps(impl);
}

bool lies_as(const at::Tensor& tensor, const DTensorImpl* first, bool dense) {
  const auto* impl = dtensor_impl(tensor);
  if (!impl) {
    return tensor.dim() == 0;
  }
  const bool is_alike = first && impl->spec() == first->spec() &&
                        impl->sizes() == first->sizes() &&
                        (!dense || impl->strides() == first->strides());
  return is_ready(*impl) && (is_alike || (first && impl->dim() == 0 &&
                                          impl->spec().is_replicated()));
}

ForeachCall::ForeachCall(
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack)
    : op_(op), count_(op.schema().arguments().size()), first_list_(0) {
  arguments_ = &stack[stack.size() - count_];
  while (!arguments_[first_list_].isTensorList()) {
    ++first_list_;
    TORCH_INTERNAL_ASSERT(
        first_list_ < count_, op.schema().name(), " has no list of tensors");
  }
}

c10::ArrayRef<c10::IValue> ForeachCall::first_list() const {
  return arguments_[first_list_].toListRef();
}

// ---- everything lies alike --------------------------------------------------

bool ForeachCall::is_aligned_list(
    c10::ArrayRef<c10::IValue> first,
    c10::ArrayRef<c10::IValue> list,
    bool dense) const {
  if (list.empty()) {
    return true;
  }
  if (list.size() != first.size()) {
    return false;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (!lies_as(
            list[i].toTensor(), dtensor_impl(first[i].toTensor()), dense)) {
      return false;
    }
  }
  return true;
}

bool ForeachCall::is_aligned(bool dense) const {
  const auto first = first_list();
  for (const auto& element : first) {
    const auto& tensor = element.toTensor();
    auto* impl = dtensor_impl(tensor);
    const bool is_fit =
        impl ? is_ready_first(*impl) &&
                   (!dense || impl->is_non_overlapping_and_dense())
             : tensor.dim() == 0;
    if (!is_fit) {
      return false;
    }
  }
  for (size_t i = 0; i < count_; ++i) {
    const auto& value = arguments_[i];
    if (value.isTensorList()) {
      if (i != first_list_ &&
          !is_aligned_list(first, value.toListRef(), dense)) {
        return false;
      }
    } else if (value.isTensor() && !is_full_scalar(value.toTensor())) {
      return false;
    }
  }
  return true;
}

void ForeachCall::to_locals() const {
  for (size_t i = 0; i < count_; ++i) {
    auto& value = arguments_[i];
    if (value.isTensor()) {
      value = full_scalar(value.toTensor(), i);
    } else if (value.isTensorList()) {
      auto list = std::move(value).toTensorList();
      if (list.use_count() > 1) {
        list = list.copy();
      }
      for (size_t k = 0; k < list.size(); ++k) {
        if (const auto* impl = dtensor_impl(list.get(k))) {
          list.set(k, impl->local());
        }
      }
      value = std::move(list);
    }
  }
}

// ---- single tensors ---------------------------------------------------------

bool ForeachCall::is_written(size_t argument) const {
  const auto* alias = op_.schema().arguments()[argument].alias_info();
  return alias && alias->isWrite();
}

at::Tensor ForeachCall::full_scalar(const at::Tensor& tensor, size_t argument)
    const {
  const auto* impl = dtensor_impl(tensor);
  if (!impl) {
    return tensor;
  }
  check_materialized(tensor, op_.schema().name());
  if (impl->spec().is_replicated()) {
    return impl->local();
  }
  TORCH_CHECK_VALUE(
      !is_written(argument),
      "[",
      op_.schema().name(),
      "] cannot write in place to `",
      op_.schema().arguments()[argument].name(),
      "`, which must be replicated: ",
      describe(tensor),
      ". Redistribute it to R first. (",
      impl->spec().mesh().describe_rank(),
      ")");
  return redistribute_local(
      impl->local(),
      impl->sizes(),
      impl->spec(),
      replicated(impl->spec()),
      op_.schema().name());
}

std::vector<at::Tensor> ForeachCall::writes_to_note() const {
  std::vector<at::Tensor> tensors;
  const void* mesh = nullptr;
  bool is_watched = false;
  for (size_t i = 0; i < count_; ++i) {
    if (!arguments_[i].isTensorList() || !is_written(i)) {
      continue;
    }
    for (const auto& element : arguments_[i].toListRef()) {
      const auto* impl = dtensor_impl(element.toTensor());
      if (impl && impl->spec().mesh().id() != mesh) {
        mesh = impl->spec().mesh().id();
        is_watched = are_writes_watched(impl->spec());
      }
      if (impl && is_watched) {
        tensors.push_back(element.toTensor());
      }
    }
  }
  return tensors;
}

void ForeachCall::note_writes(const std::vector<at::Tensor>& written) const {
  for (const auto& tensor : written) {
    note_write(tensor, op_.schema().name());
  }
}

void ForeachCall::unwrap_scalars() const {
  for (size_t i = 0; i < count_; ++i) {
    auto& value = arguments_[i];
    if (value.isTensor() && value.toTensor().defined() && !is_written(i)) {
      value = full_scalar(value.toTensor(), i);
    }
  }
}

// ---- everything brought to the first list -----------------------------------

const DTensorSpec* ForeachCall::spec_at(size_t index) const {
  const auto* impl = dtensor_impl(first_list()[index].toTensor());
  return impl ? &impl->spec() : nullptr;
}

// Returns true if the op divides the gradients by a scale, in place.
bool ForeachCall::scales_gradients() const {
  const auto index = op_.schema().argumentIndexWithName("grad_scale");
  return index && arguments_[*index].isTensor();
}

void ForeachCall::check_lengths() const {
  const size_t length = first_list().size();
  for (size_t i = 0; i < count_; ++i) {
    if (!arguments_[i].isTensorList()) {
      continue;
    }
    const size_t other = arguments_[i].toListRef().size();
    TORCH_CHECK_VALUE(
        other == length || other == 0,
        "[",
        op_.schema().name(),
        "] ",
        op_.schema().arguments()[i].name(),
        ": got ",
        other,
        " tensors, expected the ",
        length,
        " of ",
        op_.schema().arguments()[first_list_].name(),
        ". (",
        describe_rank(),
        ")");
  }
}

at::Tensor ForeachCall::aligned_part(
    size_t argument,
    size_t index,
    const DTensorSpec& to) const {
  const auto tensor = arguments_[argument].toListRef()[index].toTensor();
  const auto* impl = dtensor_impl(tensor);
  const bool placed = impl && impl->spec().mesh_ndim() != 0;
  const auto from = placed ? impl->spec() : replicated(to);
  if (from.mesh() != to.mesh()) {
    refuse(
        argument,
        index,
        "is on another mesh than the first list's tensor. Redistribute both to "
        "one mesh");
  }
  const bool is_gradient = op_.schema().arguments()[argument].name() == "grads";
  if (from != to && is_written(argument) &&
      (!is_gradient || scales_gradients())) {
    refuse(
        argument,
        index,
        "is written to, but does not have the placements of the first list's "
        "tensor. Redistribute it");
  }
  check_implicit_redistribution(op_.schema().name(), tensor, from, to, [&] {
    return describe_group(index);
  });
  const detail::RedistributeScope move(tensor, from, to, /*is_implicit=*/true);
  return redistribute_local(
      impl ? impl->local() : tensor,
      tensor.sizes(),
      from,
      to,
      op_.schema().name());
}

at::Tensor ForeachCall::aligned(size_t argument, size_t index) const {
  const auto& tensor = arguments_[argument].toListRef()[index].toTensor();
  const auto* impl = dtensor_impl(tensor);
  const auto* leader = spec_at(index);
  if (!impl) {
    return leader && tensor.dim() != 0 ? aligned_part(argument, index, *leader)
                                       : tensor;
  }
  check_materialized(tensor, op_.schema().name());
  if (is_written(argument)) {
    check_write(tensor, op_.schema().name());
  }
  if (argument == first_list_) {
    if (impl->spec().has_partial()) {
      refuse(argument, index, "is Partial. Redistribute it");
    }
    return impl->local();
  }
  if (tensor.dim() == 0 || !leader) {
    return aligned_part(argument, index, replicated(impl->spec()));
  }
  if (tensor.sizes() != first_list()[index].toTensor().sizes()) {
    refuse(
        argument,
        index,
        "differs in shape from the first list's tensor. Pass tensors of equal "
        "shapes");
  }
  // If the first list's tensor is on no mesh, it counts as replicated.
  return aligned_part(
      argument,
      index,
      leader->mesh_ndim() != 0 ? *leader : replicated(impl->spec()));
}

void ForeachCall::align_to_first() const {
  check_lengths();
  check_no_plain_tensors();
  std::vector<std::pair<size_t, c10::List<at::Tensor>>> lists;
  for (size_t i = 0; i < count_; ++i) {
    if (arguments_[i].isTensorList()) {
      auto& list = lists.emplace_back(i, c10::List<at::Tensor>()).second;
      const size_t length = arguments_[i].toListRef().size();
      list.reserve(length);
      for (size_t k = 0; k < length; ++k) {
        list.push_back(aligned(i, k));
      }
    }
  }
  for (auto& [argument, list] : lists) {
    arguments_[argument] = std::move(list);
  }
  for (size_t i = 0; i < count_; ++i) {
    if (arguments_[i].isTensor()) {
      arguments_[i] = full_scalar(arguments_[i].toTensor(), i);
    }
  }
}

// ---- refusals ---------------------------------------------------------------

void ForeachCall::check_no_plain_tensors() const {
  if (implicit_replication_enabled()) {
    return;
  }
  for (size_t i = 0; i < count_; ++i) {
    if (!arguments_[i].isTensorList()) {
      continue;
    }
    const auto list = arguments_[i].toListRef();
    for (size_t k = 0; k < list.size(); ++k) {
      const auto& tensor = list[k].toTensor();
      if (tensor.defined() && tensor.dim() != 0 && !dtensor_impl(tensor)) {
        refuse(
            i,
            k,
            "is a plain tensor among DTensors. Make it a DTensor with "
            "distribute_tensor() (full tensor) or from_local() (local tensor)");
      }
    }
  }
}

void ForeachCall::check_no_partial_writes() const {
  const auto list = first_list();
  for (size_t k = 0; k < list.size(); ++k) {
    const auto& tensor = list[k].toTensor();
    check_materialized(tensor, op_.schema().name());
    const auto* impl = dtensor_impl(tensor);
    if (impl && impl->spec().has_partial()) {
      refuse(first_list_, k, "is Partial. Redistribute it");
    }
    check_write(tensor, op_.schema().name());
  }
}

std::string ForeachCall::describe_group(size_t index) const {
  std::string text;
  for (size_t i = 0; i < count_; ++i) {
    if (!arguments_[i].isTensorList()) {
      continue;
    }
    const auto list = arguments_[i].toListRef();
    if (index < list.size()) {
      text += text.empty() ? "(" : ", ";
      text += op_.schema().arguments()[i].name() + " ";
      text += describe(list[index].toTensor());
    }
  }
  return text + ")";
}

std::string ForeachCall::describe_rank() const {
  for (size_t i = 0; i < count_; ++i) {
    if (!arguments_[i].isTensorList()) {
      continue;
    }
    for (const auto& element : arguments_[i].toListRef()) {
      if (const auto* impl = dtensor_impl(element.toTensor())) {
        return impl->spec().mesh().describe_rank();
      }
    }
  }
  return "no mesh";
}

void ForeachCall::refuse(size_t argument, size_t index, const std::string& why)
    const {
  C10_THROW_ERROR(
      ValueError,
      c10::str(
          "[",
          op_.schema().name(),
          "] ",
          op_.schema().arguments()[argument].name(),
          "[",
          index,
          "] ",
          why,
          " first. Together: ",
          describe_group(index),
          ". (",
          describe_rank(),
          ")"));
}

} // namespace weft::dtensor
