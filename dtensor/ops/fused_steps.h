#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch {
class CppFunction;
} // namespace torch

namespace weft::dtensor {

/// Returns the kernel of `op`, the in-place step of a fused optimizer
/// ("aten::_fused_adamw_"), for lists with DTensors. Gradients are
/// redistributed to the placements of their parameter; state must already have
/// them. See Note [Whole vectors].
torch::CppFunction fused_step_kernel(const c10::OperatorHandle& op);

} // namespace weft::dtensor
