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

/// To be called by whatever brings `tensor` from one spec to another because
/// an op needs it so. `operands` describes all the op's tensors; asked only on
/// failure. Costs a look at a thread-local pointer where no scope is open.
/// Throws: c10::ValueError inside an ExplicitRedistribution, on every rank.
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
