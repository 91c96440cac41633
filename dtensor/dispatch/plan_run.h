#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "dtensor/dispatch/op_plan.h"

namespace weft::dtensor {

/// Runs the call on the stack by its plan: redistributes the inputs, calls the
/// op on the local tensors, and wraps the results.
/// Collective: all ranks of `mesh`, if the plan redistributes.
void run_plan(
    const c10::OperatorHandle& op,
    const OpPlan& plan,
    const mesh::DeviceMesh& mesh,
    torch::jit::Stack& stack);

/// Runs a call whose DTensors are all unplaced.
void run_unplaced(const c10::OperatorHandle& op, torch::jit::Stack& stack);

} // namespace weft::dtensor
