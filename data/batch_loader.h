#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "data/dataset.h"

namespace weft::recipes {

struct Recipe;

/// Which part of every global batch a rank takes.
struct BatchShape {
  int64_t global_batch_size = 1;
  int64_t micro_batch_size = 1;
  int64_t dp = 1;
  int64_t dp_rank = 0;
};

/// Cuts global batches into micro-batches. Global batch s is the samples
/// [s * G, (s + 1) * G); of it, replica r takes at accumulation a the samples
/// a * dp * B + r * B + [0, B). So the global batch is the same on every mesh.
class BatchLoader {
 public:
  /// Throws: c10::ValueError unless dp * micro_batch_size divides
  /// global_batch_size and dp_rank < dp.
  BatchLoader(std::unique_ptr<Dataset> data, BatchShape shape);

  /// Opens what a validated recipe names.
  /// Throws: mesh::UsageError at the recipe's key.
  static BatchLoader open(const Recipe& recipe, int64_t dp_rank);

  int64_t accumulation_steps() const;
  /// This rank's part of the global batch that begins with sample
  /// `next_sample`, counted over all epochs.
  Batch train(int64_t next_sample, int64_t accumulation);
  Batch heldout(int64_t batch, int64_t accumulation);
  /// `wanted`, but no more global batches than the held-out samples fill; at
  /// least one, in which samples repeat if they are too few.
  int64_t num_heldout_batches(int64_t wanted) const;

  const Dataset& data() const { return *data_; }

 private:
  int64_t first_sample(int64_t accumulation) const;
  // The numbers of a micro-batch's samples.
  std::vector<int64_t> samples_from(int64_t first) const;

  std::unique_ptr<Dataset> data_;
  BatchShape shape_;
};

/// The batch on `device`. To a CUDA device it goes through pinned memory,
/// behind what this thread's current stream has queued; the host does not wait,
/// and the pinned memory is used again once the copy is over.
Batch to_device(const Batch& batch, c10::Device device);

} // namespace weft::recipes
