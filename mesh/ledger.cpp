#include "mesh/ledger.h"

#include <utility>

#include "mesh/crash_handler.h"

namespace weft::mesh {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

} // namespace

Ledger::Ledger(size_t capacity) : capacity_(capacity) {}

uint64_t Ledger::begin(LedgerEntry entry) {
  entry.start_ns = now_ns();
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

void Ledger::end(uint64_t sequence) {
  const int64_t end_ns = now_ns();
  const std::lock_guard lock(mutex_);
  // Sequence numbers in the ring are consecutive; older ones were dropped.
  if (entries_.empty() || sequence < entries_.front().sequence) {
    return;
  }
  entries_[sequence - entries_.front().sequence].end_ns = end_ns;
}

void Ledger::add_blocked(std::chrono::nanoseconds blocked) {
  const std::lock_guard lock(mutex_);
  blocked_ns_ += blocked.count();
}

std::vector<LedgerEntry> Ledger::entries() const {
  const std::lock_guard lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

std::map<std::string, int64_t> Ledger::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

int64_t Ledger::total_bytes() const {
  const std::lock_guard lock(mutex_);
  return total_bytes_;
}

int64_t Ledger::blocked_ns() const {
  const std::lock_guard lock(mutex_);
  return blocked_ns_;
}

void Ledger::reset() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
  counts_.clear();
  total_bytes_ = 0;
  blocked_ns_ = 0;
}

} // namespace weft::mesh
