#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "dtensor/rules/rule.h"

namespace weft::dtensor {

using Arguments = c10::ArrayRef<c10::IValue>;

/// Returns the tensor in an element of a tensor list, or an undefined tensor
/// for None.
inline at::Tensor tensor_or_none(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

/// Calls visit(tensor, argument, list_index) for every defined tensor.
template <class Visit>
void for_each_tensor(Arguments arguments, const Visit& visit) {
  const auto visit_defined =
      [&](const at::Tensor& tensor, size_t argument, int64_t list_index) {
        if (tensor.defined()) {
          visit(tensor, argument, list_index);
        }
      };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = arguments[i];
    if (value.isTensor()) {
      visit_defined(value.toTensor(), i, -1);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      int64_t k = 0;
      for (const auto& element : value.toListRef()) {
        visit_defined(tensor_or_none(element), i, k++);
      }
    }
  }
}

/// Returns the part of a call that the op's rule sees.
OpCall read_call(const c10::OperatorHandle& op, Arguments arguments);

/// Replaces tensors among the arguments on a stack. Each list is rebuilt once.
class ArgumentReplacer {
 public:
  explicit ArgumentReplacer(c10::IValue* first) : first_(first) {}
  ArgumentReplacer(const ArgumentReplacer&) = delete;
  ArgumentReplacer& operator=(const ArgumentReplacer&) = delete;
  ~ArgumentReplacer() = default;

  at::Tensor get(size_t argument, int64_t list_index) {
    if (list_index < 0) {
      return first_[argument].toTensor();
    }
    open(argument);
    return list_[list_index];
  }

  /// Replaces one tensor. A list is written back when another argument is set
  /// or by close().
  void set(size_t argument, int64_t list_index, at::Tensor local) {
    if (list_index < 0) {
      first_[argument] = std::move(local);
    } else {
      open(argument);
      list_[list_index] = std::move(local);
    }
  }

  /// Writes the current list back to its argument.
  void close() {
    if (!is_open_) {
      return;
    }
    is_open_ = false;
    auto& value = first_[argument_];
    if (value.isTensorList()) {
      value = std::move(list_);
      return;
    }
    c10::List<std::optional<at::Tensor>> tensors;
    for (auto& tensor : list_) {
      tensors.push_back(
          tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt);
    }
    value = std::move(tensors);
  }

 private:
  void open(size_t argument) {
    if (is_open_ && argument_ == argument) {
      return;
    }
    close();
    list_.clear();
    for (const auto& element : first_[argument].toListRef()) {
      list_.emplace_back(tensor_or_none(element));
    }
    argument_ = argument;
    is_open_ = true;
  }

  c10::IValue* first_;
  bool is_open_ = false;
  size_t argument_ = 0;
  std::vector<at::Tensor> list_;
};

} // namespace weft::dtensor
