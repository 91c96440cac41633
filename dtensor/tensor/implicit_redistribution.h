#pragma once

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "dtensor/scopes/scopes.h"
#include "dtensor/spec/spec.h"

namespace weft::dtensor {

namespace detail {
void refuse_implicit_redistribution(
    std::string_view op,
    const at::Tensor& tensor,
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::function_ref<std::string()> operands);
} // namespace detail

/// Must be called before redistributing `tensor` because an op needs it.
/// `operands` describes all tensors of the op and is called only on failure.
/// Without a scope it only reads a thread-local pointer.
/// Throws: c10::ValueError in an ExplicitRedistribution, on every rank.
inline void check_implicit_redistribution(
    std::string_view op,
    const at::Tensor& tensor,
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::function_ref<std::string()> operands) {
  if (detail::explicit_redistribution()) [[unlikely]] {
    detail::refuse_implicit_redistribution(op, tensor, from, to, operands);
  }
}

} // namespace weft::dtensor
