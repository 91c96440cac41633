#include "train/trace/module_spans.h"

#include <string>
#include <utility>
#include <vector>

#include "dtensor/scopes/module_call.h"

namespace weft::train {
namespace {

// The calls of one module that have not returned. There are several if the
// module calls itself.
struct OpenCalls {
  std::string name;
  std::shared_ptr<TraceRecorder> recorder;
  std::vector<int64_t> starts;
};

void begin_call(OpenCalls& calls) {
  if (!calls.recorder->is_on()) {
    calls.starts.clear(); // left by a call that threw
    return;
  }
  calls.starts.push_back(monotonic_ns());
}

void end_call(OpenCalls& calls) {
  if (calls.starts.empty()) {
    return;
  }
  const int64_t start_ns = calls.starts.back();
  calls.starts.pop_back();
  if (calls.recorder->is_on()) {
    calls.recorder->add(
        {calls.name,
         "module",
         start_ns,
         monotonic_ns(),
         calls.recorder->track(),
         ""});
  }
}

} // namespace

void add_module_spans(
    torch::nn::Module& model,
    const std::shared_ptr<TraceRecorder>& recorder) {
  // The list is complete before hooks are added, because hooks are modules,
  // too.
  for (const auto& item : model.named_modules()) {
    auto& module = *item.value();
    if (dynamic_cast<dtensor::ModuleHooks*>(&module)) {
      continue;
    }
    auto calls = std::make_shared<OpenCalls>(
        item.key().empty() ? dtensor::module_type_name(module) : item.key(),
        recorder);
    auto& hooks = dtensor::module_hooks(module);
    hooks.before.insert(
        hooks.before.begin(),
        [calls](std::vector<at::Tensor>& /*inputs*/) { begin_call(*calls); });
    hooks.after.emplace_back(
        [calls](std::vector<at::Tensor>& /*outputs*/) { end_call(*calls); });
  }
}

} // namespace weft::train
