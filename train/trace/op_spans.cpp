#include "train/trace/op_spans.h"

#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/parameter_info.h"

// Note [Recorder of a thread]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// RecordFunction's callbacks are plain functions, so they need a way to the
// recorder of their rank, and ranks may be threads of one process. Like the
// callbacks themselves, ThreadLocalDebugInfo is passed on to the threads that
// autograd works with. PRODUCER_INFO is the slot that nothing in libtorch
// reads or writes.

namespace weft::train {
namespace {

struct RecorderOfThread : c10::DebugInfoBase {
  explicit RecorderOfThread(std::shared_ptr<TraceRecorder> recorder)
      : recorder(std::move(recorder)) {}
  std::shared_ptr<TraceRecorder> recorder;
};

struct OpenSpan : at::ObserverContext {
  std::shared_ptr<TraceRecorder> recorder;
  int64_t start_ns = 0;
  int64_t track = 0;
  std::string details;
};

// Returns the name of a parameter, or of the parameter that `tensor` is a view
// of: nn::Linear multiplies by weight.t().
std::string parameter_name(const at::Tensor& tensor) {
  const bool is_view = dtensor::is_dtensor(tensor) && tensor.is_view();
  return dtensor::parameter_name(is_view ? at::Tensor(tensor._base()) : tensor);
}

// Returns e.g. {"inputs": "[2, 3] [3]", "parameter": "model.norm.weight"}.
std::string details_of(c10::ArrayRef<const c10::IValue> inputs) {
  std::string shapes;
  std::string parameter;
  for (const auto& input : inputs) {
    if (!input.isTensor() || !input.toTensor().defined() ||
        input.toTensor().layout() != at::kStrided) {
      continue;
    }
    const auto& tensor = input.toTensor();
    fmt::format_to(
        std::back_inserter(shapes),
        "{}[{}]",
        shapes.empty() ? "" : " ",
        fmt::join(tensor.sizes(), ", "));
    if (parameter.empty()) {
      parameter = parameter_name(tensor);
    }
  }
  if (shapes.empty()) {
    return "";
  }
  return parameter.empty()
             ? fmt::format(R"({{"inputs":"{}"}})", shapes)
             : fmt::format(
                   R"({{"inputs":"{}","parameter":{}}})",
                   shapes,
                   base::strict_json_text(nlohmann::json(parameter)));
}

std::unique_ptr<at::ObserverContext> begin_op(const at::RecordFunction& op) {
  auto* own = static_cast<RecorderOfThread*>(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PRODUCER_INFO));
  if (!own) {
    return nullptr;
  }
  auto span = std::make_unique<OpenSpan>();
  span->recorder = own->recorder;
  span->track = own->recorder->track();
  span->details = details_of(op.inputs());
  span->start_ns = monotonic_ns();
  return span;
}

void end_op(const at::RecordFunction& op, at::ObserverContext* context) {
  if (!context) {
    return;
  }
  const int64_t end_ns = monotonic_ns();
  auto& span = static_cast<OpenSpan&>(*context);
  const std::string_view name = op.name();
  const bool is_backward = op.scope() == at::RecordScope::BACKWARD_FUNCTION ||
                           name.starts_with("autograd::");
  span.recorder->add(
      {std::string(name),
       is_backward ? "backward" : "op",
       span.start_ns,
       end_ns,
       span.track,
       std::move(span.details)});
}

} // namespace

OpSpans::OpSpans(std::shared_ptr<TraceRecorder> recorder)
    : recorder_of_thread_(
          c10::DebugInfoKind::PRODUCER_INFO,
          std::make_shared<RecorderOfThread>(std::move(recorder))),
      callback_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(begin_op, end_op).needsInputs(true))) {}

OpSpans::~OpSpans() {
  at::removeCallback(callback_);
}

} // namespace weft::train
