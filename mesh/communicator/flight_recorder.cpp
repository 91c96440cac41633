#include "mesh/communicator/flight_recorder.h"

#include <algorithm>
#include <utility>

#include "mesh/crash/crash_handler.h"

namespace weft::mesh {

int64_t flight_recorder_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

FlightRecorder::FlightRecorder(size_t capacity) : capacity_(capacity) {}

uint64_t FlightRecorder::begin(FlightRecorderEntry entry) {
  entry.start_ns = flight_recorder_now_ns();
  entry.end_ns = 0;
  const std::lock_guard lock(mutex_);
  entry.sequence = next_sequence_++;
  note_collective(entry.sequence, entry.op, entry.name);
  ++counts_[entry.op];
  total_bytes_ += entry.bytes;
  if (capacity_ > 0) {
    if (entries_.size() == capacity_) {
      entries_.pop_front();
    }
    entries_.push_back(std::move(entry));
  }
  return next_sequence_ - 1;
}

void FlightRecorder::end(uint64_t sequence) {
  const int64_t end_ns = flight_recorder_now_ns();
  const std::lock_guard lock(mutex_);
  // Sequence numbers in the ring are consecutive; older ones were dropped.
  if (entries_.empty() || sequence < entries_.front().sequence) {
    return;
  }
  auto& entry = entries_[sequence - entries_.front().sequence];
  entry.end_ns = end_ns;
  entry.parts = {};
}

void FlightRecorder::begin_wait(uint64_t sequence) {
  const int64_t since_ns = flight_recorder_now_ns();
  const std::lock_guard lock(mutex_);
  waits_.emplace_back(sequence, since_ns);
}

void FlightRecorder::end_wait(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  const auto wait =
      std::ranges::find(waits_, sequence, [](auto& w) { return w.first; });
  if (wait != waits_.end()) {
    waits_.erase(wait);
  }
}

void FlightRecorder::copy_wait(FlightRecorderEntry& entry) const {
  for (const auto& [sequence, since_ns] : waits_) {
    if (sequence == entry.sequence) {
      entry.wait_ns = since_ns;
    }
  }
}

void FlightRecorder::add_blocked(std::chrono::nanoseconds blocked) {
  const std::lock_guard lock(mutex_);
  blocked_ns_ += blocked.count();
}

std::vector<FlightRecorderEntry> FlightRecorder::entries() const {
  const std::lock_guard lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

std::vector<FlightRecorderEntry> FlightRecorder::newest(size_t most) const {
  const std::lock_guard lock(mutex_);
  std::vector<FlightRecorderEntry> found;
  size_t under_way = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const bool is_new = i + most >= entries_.size();
    const bool is_open = entries_[i].end_ns == 0 && under_way < most;
    under_way += is_open ? 1 : 0;
    if (is_new || is_open) {
      found.push_back(entries_[i]);
      copy_wait(found.back());
    }
  }
  return found;
}

uint64_t FlightRecorder::next_sequence() const {
  const std::lock_guard lock(mutex_);
  return next_sequence_;
}

int64_t FlightRecorder::waiting_since_ns() const {
  const std::lock_guard lock(mutex_);
  int64_t oldest = 0;
  for (const auto& wait : waits_) {
    oldest = oldest == 0 ? wait.second : std::min(oldest, wait.second);
  }
  return oldest;
}

std::map<std::string, int64_t> FlightRecorder::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

int64_t FlightRecorder::total_bytes() const {
  const std::lock_guard lock(mutex_);
  return total_bytes_;
}

int64_t FlightRecorder::blocked_ns() const {
  const std::lock_guard lock(mutex_);
  return blocked_ns_;
}

void FlightRecorder::reset() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
  counts_.clear();
  total_bytes_ = 0;
  blocked_ns_ = 0;
}

} // namespace weft::mesh
