#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

namespace weft::recipes {

/// A micro-batch of one replica.
/// Shapes: of text input and target [B, T] int64, the targets being the tokens
/// one further; of images input [B, C, H, W] float32 in [0, 1] and target [B]
/// int64.
struct Batch {
  at::Tensor input;
  at::Tensor target;
  /// The position of its first sample in the global batch.
  int64_t first_sample = 0;
};

/// Samples by number. What a sample is depends on the data and the seed: not on
/// the mesh, and not on the samples before it.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Training samples in an epoch.
  virtual int64_t num_train_samples() const = 0;
  virtual int64_t num_heldout_samples() const = 0;

  /// Training samples, counted over all epochs.
  virtual Batch train(std::span<const int64_t> samples) = 0;
  /// Held-out samples, modulo their number.
  virtual Batch heldout(std::span<const int64_t> samples) = 0;

  /// Of the names and sizes of the files: tells whether a later run has the
  /// same.
  virtual std::string fingerprint_text() const = 0;
  /// "84.2 MB of text".
  virtual std::string describe() const = 0;
};

} // namespace weft::recipes
