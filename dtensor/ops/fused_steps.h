#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch {
class CppFunction;
} // namespace torch

namespace weft::dtensor {

/// The kernel of `op`, the step of a fused optimizer in place
/// ("aten::_fused_adamw_"), for lists with DTensors. Gradients are brought to
/// where their parameter lies; state has to lie there already. See
/// Note [Whole vectors].
torch::CppFunction fused_step_kernel(const c10::OperatorHandle& op);

} // namespace weft::dtensor
