#pragma once

#include <memory>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "train/trace/trace_recorder.h"

namespace weft::recipes {

/// While it lives, every operator that the calling thread runs, and those that
/// autograd runs for it, becomes a span: on DTensors, and nested in it on the
/// local tensors. A span knows its inputs' shapes and the parameter among
/// them.
/// Lifetime: destroyed on the thread that made it, in reverse order of
/// anything else that is kept in ThreadLocalDebugInfo.
class OpSpans {
 public:
  explicit OpSpans(std::shared_ptr<TraceRecorder> recorder);
  ~OpSpans();
  OpSpans(const OpSpans&) = delete;
  OpSpans& operator=(const OpSpans&) = delete;

 private:
  c10::DebugInfoGuard recorder_of_thread_;
  at::CallbackHandle callback_;
};

} // namespace weft::recipes
