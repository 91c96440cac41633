#pragma once

#include <exception>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace weft::dtensor::check {

using torch::jit::Stack;

/// Returns the arguments with each defined tensor replaced by
/// replace(tensor, index), counting as TensorArguments are.
template <class Replace>
Stack map_tensors(c10::ArrayRef<c10::IValue> arguments, const Replace& replace);

/// Defined tensors, lists laid out flat.
std::vector<at::Tensor> tensors_of(c10::ArrayRef<c10::IValue> values);
/// Returns copies of the arguments.
Stack cloned(const Stack& arguments);
/// "[4, 6], [[2], [2]], 0, none".
std::string describe(const Stack& arguments);

/// What `error` says, never nothing, without where it was thrown.
std::string message_of(const std::exception& error);

/// "add.Tensor": name and overload, without "aten::".
std::string short_name(const c10::OperatorHandle& op);
/// "add" of add.Tensor, add_.Tensor and add.out.
std::string packet_of(const c10::OperatorHandle& op);

bool has_out_argument(const c10::FunctionSchema& schema);
/// An op without tensor arguments, e.g. a factory, is never called with a
/// DTensor.
bool has_tensor_argument(const c10::FunctionSchema& schema);
/// Whether the op writes to argument `index`.
bool is_written(const c10::FunctionSchema& schema, size_t index);
/// Whether the op returns tensors that it wrote to, or nothing.
bool is_inplace(const c10::FunctionSchema& schema);
/// For each defined tensor whether the op writes to it.
std::vector<bool> written_tensors(
    const c10::OperatorHandle& op,
    const Stack& arguments);
/// Results are whatever the memory held, or random.
bool has_values(const c10::OperatorHandle& op);
bool is_random(const c10::OperatorHandle& op);

/// Whether the op returns numbers, not tensors.
bool returns_numbers(const c10::OperatorHandle& op);

/// Deprecations that samples run into say nothing here. For this thread.
void ignore_warnings();

/// Returns the results of a call: the tensors it returns (undefined ones too),
/// or, where those are arguments or nothing, the arguments that it wrote to;
/// numbers as plain tensors of no dims.
std::vector<at::Tensor> call(const c10::OperatorHandle& op, Stack arguments);

template <class Replace>
Stack map_tensors(
    c10::ArrayRef<c10::IValue> arguments,
    const Replace& replace) {
  Stack mapped;
  size_t next = 0;
  for (const auto& value : arguments) {
    if (value.isTensor() && value.toTensor().defined()) {
      mapped.emplace_back(replace(value.toTensor(), next++));
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& tensor : list) {
        tensor = replace(tensor, next++);
      }
      mapped.emplace_back(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(
            tensor ? std::optional(replace(*tensor, next++)) : std::nullopt);
      }
      mapped.emplace_back(list);
    } else {
      mapped.push_back(value);
    }
  }
  return mapped;
}

} // namespace weft::dtensor::check
