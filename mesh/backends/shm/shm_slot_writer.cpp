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

// Smaller copies take a microsecond at most.
constexpr size_t kLeastStreamed = size_t{8} * 1024;
// What ordinary stores must cost more than non-temporal ones. Between cores
// that share a last-level cache they cost up to 8 ns a line more, of which the
// reader loses half or all again; between others 13 to 25 ns.
constexpr double kRatio = 3;
constexpr double kNsPerByte = 12.0 / 64;
// How often a rank that uses non-temporal stores tries the others.
constexpr uint64_t kCopiesPerTrial = 1024;

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
  // Before whatever tells the reader that the data is there.
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
  ++copies_;
  if (!streamed_.is_full()) {
    return ordinary_.is_full();
  }
  return streams_ && copies_ % kCopiesPerTrial != 0;
}

void ShmStoreChoice::add(bool is_streamed, double ns_per_byte) {
  (is_streamed ? streamed_ : ordinary_).add(ns_per_byte);
  const double ordinary = ordinary_.least();
  const double streamed = streamed_.least();
  streams_ = streamed_.is_full() && ordinary > kRatio * streamed &&
             ordinary > kNsPerByte + streamed;
}

void ShmSlotWriter::copy(std::byte* slot, const std::byte* from, size_t bytes) {
  if (bytes < kLeastStreamed || !kCanStream) {
    std::copy_n(from, bytes, slot);
    return;
  }
  using Clock = std::chrono::steady_clock;
  auto& choice = choices_[std::min(
      static_cast<size_t>(std::bit_width(bytes - 1)), choices_.size() - 1)];
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
