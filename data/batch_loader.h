#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "data/dataset.h"

namespace weft::config {
struct Recipe;
} // namespace weft::config

namespace weft::data {

/// The part of a global batch that a rank gets.
struct BatchShape {
  int64_t global_batch_size = 1;
  int64_t micro_batch_size = 1;
  int64_t dp = 1;
  int64_t dp_rank = 0;
};

/// Splits global batches into micro-batches. Global batch s has the samples [s
/// * G, (s + 1) * G). Replica r gets at accumulation a the samples a * dp * B +
/// r * B + [0, B) of it. The global batch is identical on every mesh.
class BatchLoader {
 public:
  /// Throws: c10::ValueError unless dp * micro_batch_size divides
  /// global_batch_size and dp_rank < dp.
  BatchLoader(std::unique_ptr<Dataset> data, BatchShape shape);

  /// Opens the data of a validated recipe.
  /// Throws: mesh::UsageError at the recipe's key.
  static BatchLoader open(const config::Recipe& recipe, int64_t dp_rank);

  int64_t accumulation_steps() const;
  /// Returns this rank's part of the global batch that begins with sample
  /// `next_sample`, counted over all epochs.
  Batch train(int64_t next_sample, int64_t accumulation);
  Batch heldout(int64_t batch, int64_t accumulation);
  /// Returns `wanted`, limited to the number of global batches of validation
  /// data, and at least one; if there are too few samples they repeat.
  int64_t num_heldout_batches(int64_t wanted) const;

  const Dataset& data() const { return *data_; }

 private:
  int64_t first_sample(int64_t accumulation) const;
  // The numbers of a micro-batch's samples.
  std::vector<int64_t> samples_from(int64_t first) const;

  std::unique_ptr<Dataset> data_;
  BatchShape shape_;
};

/// Returns the batch on `device`. A copy to a CUDA device uses pinned memory
/// and runs after the work queued on this thread's current stream; the host
/// does not wait, and the pinned memory is reused after the copy.
Batch to_device(const Batch& batch, c10::Device device);

} // namespace weft::data
