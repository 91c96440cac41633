#pragma once

#include <memory>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "train/trace/trace_recorder.h"

namespace weft::train {

/// A scope in which every operator that the calling thread runs, or that
/// autograd runs for it, becomes a span: an operator on DTensors, and nested in
/// it those on the local tensors. A span has the shapes of its inputs and the
/// name of a parameter among them.
/// Lifetime: must be destroyed on the thread that created it, in reverse order
/// with anything else in ThreadLocalDebugInfo.
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

} // namespace weft::train
