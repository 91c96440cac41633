#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace weft::dtensor {

/// The kernel, below autograd, of every op with a rule. See Note [Dispatch].
void dispatch_boxed(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

} // namespace weft::dtensor
