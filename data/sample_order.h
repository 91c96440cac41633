#pragma once

#include <cstdint>
#include <string>

namespace weft::recipes {

/// A permutation of [0, size) that needs no memory: a Feistel network on the
/// next power of four, walked until it lands inside. The same on every
/// platform. Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains
/// (2002).
/// Throws: c10::ValueError unless 0 <= index < size.
int64_t permute(int64_t index, int64_t size, uint64_t seed, uint64_t stream);

/// Which of `size` training samples comes at place `global_index`, counted over
/// all epochs: each epoch takes all of them in an order of its own.
/// Throws: c10::ValueError if the place is negative.
int64_t shuffled(int64_t global_index, int64_t size, uint64_t seed);

/// Where every sample begins. The last 1 % of the tokens, or as many as one
/// sample needs, are held out; the rest is cut into windows of
/// sequence_length + 1 tokens that share their end tokens with the next, and
/// taken in a new order every epoch. What sample `global_index` is depends on
/// nothing else: not on the mesh, and not on the samples before it.
class SampleOrder {
 public:
  /// `where` begins error messages.
  /// Throws: mesh::UsageError if there are too few tokens for a training and a
  /// held-out sample.
  SampleOrder(
      int64_t num_tokens,
      int64_t sequence_length,
      uint64_t seed,
      const std::string& where = "data.sequence_length");

  int64_t sequence_length() const { return sequence_length_; }
  /// Training samples in an epoch.
  int64_t num_train_samples() const { return num_train_samples_; }
  int64_t num_heldout_samples() const { return num_heldout_samples_; }
  /// The first token that is held out.
  int64_t heldout_begin() const { return heldout_begin_; }

  /// The first token of training sample `global_index`, counted over all
  /// epochs. Throws: c10::ValueError if it is negative.
  int64_t train_offset(int64_t global_index) const;
  /// The first token of held-out sample `index`, modulo their number.
  int64_t heldout_offset(int64_t index) const;

 private:
  int64_t sequence_length_;
  uint64_t seed_;
  int64_t heldout_begin_;
  int64_t num_train_samples_;
  int64_t num_heldout_samples_;
};

} // namespace weft::recipes
