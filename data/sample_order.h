#pragma once

#include <cstdint>
#include <string>

namespace weft::data {

/// Returns the image of `index` under a permutation of [0, size) that needs no
/// memory: a Feistel network on the next power of four, with cycle walking.
/// Identical on every platform.
/// Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains (2002).
/// Throws: c10::ValueError unless 0 <= index < size.
int64_t permute(int64_t index, int64_t size, uint64_t seed, uint64_t stream);

/// Returns which of `size` training samples is at position `global_index`,
/// counted over all epochs. Every epoch has all samples in its own order.
/// Throws: c10::ValueError if the position is negative.
int64_t shuffled(int64_t global_index, int64_t size, uint64_t seed);

/// The start of every sample. The last 1 % of the tokens, at least one sample,
/// are validation data. The others are split into windows of sequence_length +
/// 1 tokens that share their end tokens with the next window, and shuffled in
/// every epoch. Sample `global_index` depends on nothing else, in particular
/// not on the mesh or on earlier samples.
class SampleOrder {
 public:
  /// `where` is the start of error messages.
  /// Throws: mesh::UsageError if there are too few tokens for a training and a
  /// validation sample.
  SampleOrder(
      int64_t num_tokens,
      int64_t sequence_length,
      uint64_t seed,
      const std::string& where = "data.sequence_length");

  int64_t sequence_length() const { return sequence_length_; }
  /// The number of training samples per epoch.
  int64_t num_train_samples() const { return num_train_samples_; }
  int64_t num_heldout_samples() const { return num_heldout_samples_; }
  /// The first token of the validation data.
  int64_t heldout_begin() const { return heldout_begin_; }

  /// Returns the first token of training sample `global_index`, counted over
  /// all epochs.
  /// Throws: c10::ValueError if it is negative.
  int64_t train_offset(int64_t global_index) const;
  /// Returns the first token of validation sample `index`, modulo their number.
  int64_t heldout_offset(int64_t index) const;

 private:
  int64_t sequence_length_;
  uint64_t seed_;
  int64_t heldout_begin_;
  int64_t num_train_samples_;
  int64_t num_heldout_samples_;
};

} // namespace weft::data
