#include "mesh/backends/shm/shm_slot_writer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace weft::mesh {
namespace {

// The smallest copy, in bytes, for which stores are measured and chosen. A
// smaller copy loses at most 3 us with ordinary stores, and reading the clock
// would take a notable part of its time.
constexpr size_t kLeastStreamed = size_t{8} * 1024;
// See Note [Stores to a slot]. Copies use non-temporal stores only above these
// limits: below them the reader may lose as much as the writer gains. The gain
// is in ns.
constexpr double kLeastRatio = 3;
constexpr double kLeastGainPerByte = 12.0 / 64;
constexpr uint64_t kMostCopiesPerTrial = 1024;

#if defined(__x86_64__)
constexpr bool kCanStream = true;

void stream(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kLine = 64;
  const size_t head = std::min(
      bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  const size_t end = head + (bytes - head) / kLine * kLine;
  for (size_t line = head; line < end; line += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + line);
    auto* target = reinterpret_cast<__m128i*>(to + line);
    for (size_t i = 0; i < kLine / sizeof(__m128i); ++i) {
      _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
    }
  }
  std::memcpy(to + end, from + end, bytes - end);
  // Non-temporal stores are not ordered with later ones. The fence makes the
  // data visible before the flag that tells the reader to read it.
  _mm_sfence();
}
#else
constexpr bool kCanStream = false;

void stream(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

} // namespace

double ShmStoreChoice::Times::least() const {
  return *std::ranges::min_element(times_);
}

bool ShmStoreChoice::next_is_streamed() {
  if (!ordinary_.is_full() || !streamed_.is_full()) {
    return ordinary_.is_full();
  }
  if (++copies_since_trial_ < period_) {
    return streams_;
  }
  copies_since_trial_ = 0;
  period_ = std::min(2 * period_, kMostCopiesPerTrial);
  return !streams_;
}

void ShmStoreChoice::add(bool is_streamed, double ns_per_byte) {
  (is_streamed ? streamed_ : ordinary_).add(ns_per_byte);
  const double ordinary = ordinary_.least();
  const double streamed = streamed_.least();
  streams_ = streamed_.is_full() && ordinary > kLeastRatio * streamed &&
             ordinary > kLeastGainPerByte + streamed;
}

ShmSlotWriter::ShmSlotWriter(int64_t ranks)
    : for_one_(static_cast<size_t>(ranks)) {}

void ShmSlotWriter::copy_for_all(
    std::byte* slot,
    const std::byte* from,
    size_t bytes) {
  copy(for_all_, slot, from, bytes);
}

void ShmSlotWriter::copy_for(
    int64_t reader,
    std::byte* slot,
    const std::byte* from,
    size_t bytes) {
  copy(for_one_[static_cast<size_t>(reader)], slot, from, bytes);
}

void ShmSlotWriter::copy(
    Choices& choices,
    std::byte* slot,
    const std::byte* from,
    size_t bytes) {
  if (bytes < kLeastStreamed || !kCanStream) {
    std::copy_n(from, bytes, slot);
    return;
  }
  using Clock = std::chrono::steady_clock;
  const auto size =
      static_cast<size_t>(std::bit_width((bytes - 1) / kLeastStreamed));
  auto& choice = choices[std::min(size, choices.size() - 1)];
  const bool is_streamed = choice.next_is_streamed();
  const auto start = Clock::now();
  if (is_streamed) {
    stream(slot, from, bytes);
  } else {
    std::memcpy(slot, from, bytes);
  }
  const std::chrono::duration<double, std::nano> time = Clock::now() - start;
  choice.add(is_streamed, time.count() / static_cast<double>(bytes));
}

} // namespace weft::mesh
