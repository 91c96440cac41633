#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

namespace weft::data {

/// A micro-batch of one replica.
/// Shapes: for text, input and target [B, T] int64, with the targets one token
/// ahead; for images, input [B, C, H, W] float32 in [0, 1] and target [B]
/// int64.
struct Batch {
  at::Tensor input;
  at::Tensor target;
  /// The position of its first sample in the global batch.
  int64_t first_sample = 0;
};

/// Samples by number. A sample depends on the data and the seed, not on the
/// mesh or on earlier samples.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// The number of training samples per epoch.
  virtual int64_t num_train_samples() const = 0;
  virtual int64_t num_heldout_samples() const = 0;

  /// Returns training samples by numbers counted over all epochs.
  virtual Batch train(std::span<const int64_t> samples) = 0;
  /// Returns validation samples; numbers are taken modulo their count.
  virtual Batch heldout(std::span<const int64_t> samples) = 0;

  /// Returns a fingerprint of the names and sizes of the files, which detects
  /// changes in a later run.
  virtual std::string fingerprint_text() const = 0;
  /// Returns "84.2 MB of text".
  virtual std::string describe() const = 0;
};

} // namespace weft::data
