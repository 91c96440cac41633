#include "tests/dtensor/op_check/arguments.h"

#include <algorithm>

#include <torch/torch.h>

#include "mesh/error/failure.h"

namespace weft::dtensor::check {
namespace {

std::string describe_value(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (!tensor.defined()) {
      return "none";
    }
    std::string text = c10::str(tensor.sizes());
    if (tensor.scalar_type() != at::kDouble) {
      text += c10::str(" ", tensor.scalar_type());
    }
    return text + (tensor.is_contiguous() ? "" : " strided");
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    std::string text;
    for (const auto& tensor : tensors_of(value)) {
      text += (text.empty() ? "" : ", ") + describe_value(tensor);
    }
    return "[" + text + "]";
  }
  return value.isNone() ? "none" : c10::str(value);
}

} // namespace

std::vector<at::Tensor> tensors_of(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> tensors;
  map_tensors(values, [&](const at::Tensor& tensor, size_t) {
    tensors.push_back(tensor);
    return tensor;
  });
  return tensors;
}

Stack cloned(const Stack& arguments) {
  return map_tensors(
      arguments, [](const at::Tensor& t, size_t) { return t.clone(); });
}

std::string describe(const Stack& arguments) {
  std::string text;
  for (const auto& value : arguments) {
    text += (text.empty() ? "" : ", ") + describe_value(value);
  }
  return text;
}

std::string message_of(const std::exception& error) {
  const auto text = mesh::message_of(error);
  return text.empty() ? "an error without a message" : text;
}

std::string short_name(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto name = schema.name().substr(6);
  return schema.overload_name().empty() ? name
                                        : name + "." + schema.overload_name();
}

std::string packet_of(const c10::OperatorHandle& op) {
  auto name = op.schema().name().substr(6);
  if (name.ends_with('_') && !name.ends_with("__")) {
    name.pop_back();
  } else if (name.starts_with("__i") && name.ends_with("__")) {
    // __iand__ is __and__ in place.
    static const std::vector<std::string> bitwise{
        "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"};
    if (std::ranges::find(bitwise, name) != bitwise.end()) {
      name.erase(2, 1);
    }
  }
  return name;
}

bool has_out_argument(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const auto& argument) {
    return argument.is_out();
  });
}

bool has_tensor_argument(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const auto& argument) {
    return argument.type()->repr_str().find("Tensor") != std::string::npos;
  });
}

bool is_written(const c10::FunctionSchema& schema, size_t index) {
  const auto* alias = schema.arguments()[index].alias_info();
  return alias && alias->isWrite();
}

bool is_inplace(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) {
    return true;
  }
  const auto* alias = schema.returns()[0].alias_info();
  return alias && alias->isWrite();
}

std::vector<bool> written_tensors(
    const c10::OperatorHandle& op,
    const Stack& arguments) {
  std::vector<bool> written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto count = tensors_of(arguments[i]).size();
    written.insert(written.end(), count, is_written(op.schema(), i));
  }
  return written;
}

bool is_random(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

bool has_values(const c10::OperatorHandle& op) {
  return !is_random(op) &&
         op.schema().name().find("empty") == std::string::npos;
}

bool returns_numbers(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return !returns.empty() && std::ranges::all_of(returns, [](const auto& one) {
    const auto kind = one.type()->kind();
    return kind == c10::TypeKind::BoolType || kind == c10::TypeKind::IntType ||
           kind == c10::TypeKind::NumberType;
  });
}

void ignore_warnings() {
  struct Ignore : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  static Ignore ignore;
  c10::WarningUtils::set_warning_handler(&ignore);
}

std::vector<at::Tensor> call(const c10::OperatorHandle& op, Stack arguments) {
  const auto& schema = op.schema();
  std::vector<at::Tensor> results;
  for (size_t i = 0; is_inplace(schema) && i < arguments.size(); ++i) {
    if (is_written(schema, i)) {
      for (auto& tensor : tensors_of(arguments[i])) {
        results.push_back(tensor);
      }
    }
  }
  op.callBoxed(&arguments);
  if (is_inplace(schema)) {
    return results;
  }
  for (const auto& value : arguments) {
    if (value.isTensor()) {
      results.push_back(value.toTensor());
    } else if (returns_numbers(op)) {
      const auto number = value.toScalar();
      results.push_back(at::scalar_tensor(number, number.type()));
    } else {
      const auto list = tensors_of(value);
      results.insert(results.end(), list.begin(), list.end());
    }
  }
  return results;
}

} // namespace weft::dtensor::check
