#include "data/sample_order.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "mesh/error/error.h"

namespace weft::data {
namespace {

// Returns a hash of `x`. Source: Steele, Lea and Flood, Fast Splittable
// Pseudorandom Number Generators (2014), SplitMix64's finaliser.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

void check_index(const char* what, int64_t index, int64_t size) {
  if (index < 0 || index >= size) {
    mesh::throw_error<c10::ValueError>(fmt::format(
        "[{}] sample index {} is out of range for {} samples.",
        what,
        index,
        size));
  }
}

} // namespace

int64_t permute(int64_t index, int64_t size, uint64_t seed, uint64_t stream) {
  check_index("permute", index, size);
  constexpr uint64_t kRounds = 6;
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  const int half_bits = std::max(1, (bits + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  const uint64_t key = mix(mix(seed) ^ stream);
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next =
          left ^ (mix(key + mix(right ^ (round << 56))) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits | right;
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

int64_t shuffled(int64_t global_index, int64_t size, uint64_t seed) {
  check_index("shuffled", global_index, INT64_MAX);
  const auto epoch = static_cast<uint64_t>(global_index / size);
  return permute(global_index % size, size, seed, epoch);
}

SampleOrder::SampleOrder(
    int64_t num_tokens,
    int64_t sequence_length,
    uint64_t seed,
    const std::string& where)
    : sequence_length_(sequence_length), seed_(seed) {
  const int64_t heldout = std::max(num_tokens / 100, sequence_length + 1);
  heldout_begin_ = num_tokens - heldout;
  if (heldout_begin_ < sequence_length + 1) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: a sequence length of {} is too long for data of {} tokens. One "
        "training and one validation sample need {}",
        where,
        sequence_length,
        num_tokens,
        2 * (sequence_length + 1)));
  }
  num_train_samples_ = (heldout_begin_ - 1) / sequence_length;
  num_heldout_samples_ = (heldout - 1) / sequence_length;
}

int64_t SampleOrder::train_offset(int64_t global_index) const {
  return shuffled(global_index, num_train_samples_, seed_) * sequence_length_;
}

int64_t SampleOrder::heldout_offset(int64_t index) const {
  check_index("heldout_offset", index, INT64_MAX);
  return heldout_begin_ + index % num_heldout_samples_ * sequence_length_;
}

} // namespace weft::data
