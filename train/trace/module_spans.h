#pragma once

#include <memory>

#include "train/trace/trace_recorder.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::train {

/// Records a span, named after the module's path in the model, for every later
/// call of a module of `model` through dtensor::call() while `recorder` is on.
/// The spans include the work of parallel styles during the call. One rank's
/// model must be called by one thread at a time.
void add_module_spans(
    torch::nn::Module& model,
    const std::shared_ptr<TraceRecorder>& recorder);

} // namespace weft::train
