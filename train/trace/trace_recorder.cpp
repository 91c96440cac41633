#include "train/trace/trace_recorder.h"

#include <chrono>
#include <utility>

namespace weft::train {

int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

TraceRecorder::TraceRecorder(size_t capacity) : capacity_(capacity) {}

int64_t TraceRecorder::track() {
  const std::lock_guard lock(mutex_);
  const auto next = static_cast<int64_t>(tracks_.size());
  return tracks_.try_emplace(std::this_thread::get_id(), next).first->second;
}

void TraceRecorder::add(TraceEvent event) {
  const std::lock_guard lock(mutex_);
  if (events_.size() < capacity_) {
    events_.push_back(std::move(event));
  } else {
    ++dropped_;
  }
}

std::vector<TraceEvent> TraceRecorder::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

int64_t TraceRecorder::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

TraceSpan::TraceSpan(
    TraceRecorder* recorder,
    std::string_view name,
    const char* category)
    : recorder_(recorder) {
  if (recorder_) {
    event_.name = name;
    event_.category = category;
    event_.track = recorder_->track();
    event_.start_ns = monotonic_ns();
  }
}

TraceSpan::~TraceSpan() {
  if (recorder_) {
    event_.end_ns = monotonic_ns();
    recorder_->add(std::move(event_));
  }
}

} // namespace weft::train
