#pragma once

#include <memory>

#include "train/trace/trace_recorder.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::recipes {

/// From now on every module below `model` that is called through
/// dtensor::call() becomes a span, named by its place in the model, while
/// `recorder` is on. The spans hold what parallel styles do at the call, too.
/// One rank's model is called by one thread at a time.
void add_module_spans(
    torch::nn::Module& model,
    const std::shared_ptr<TraceRecorder>& recorder);

} // namespace weft::recipes
