#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data_parallel/comm_hooks/comm_hook.h"

namespace weft::data_parallel {

class PowerSGD;

/// The options of PowerSGD.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py,
/// PowerSGDState.
struct PowerSGDOptions {
  /// The rank of the approximation. A higher rank is more exact and sends more
  /// bytes.
  int64_t matrix_approximation_rank = 1;
  /// The number of uncompressed steps at the start. At least 2 with
  /// use_error_feedback or warm_start, because buckets are rebuilt after the
  /// first step.
  int64_t start_powerSGD_iter = 1000;
  /// The minimum compression rate at which a gradient is compressed.
  double min_compression_rate = 2;
  /// Adds the error of a step to the gradients of the next one.
  bool use_error_feedback = true;
  /// Starts from the factor of the previous step instead of a random one.
  bool warm_start = true;
  /// The epsilon that is added to the column norms of a factor in Gram-Schmidt.
  /// A factor of more than two columns is orthogonalized by QR without it.
  double orthogonalization_epsilon = 0;
  /// The seed of the random factors, identical on all ranks.
  uint32_t random_seed = 0;
  /// The number of steps between two reports in libtorch's log (level INFO), at
  /// least 1.
  int64_t compression_stats_logging_frequency = 10'000;
  /// Compresses gradients of one shape in one operation, which requires a copy.
  bool batch_tensors_with_same_shape = false;
};

/// The statistics of this rank since the start of compression.
struct CompressionStats {
  /// numel_before_compression / numel_after_compression.
  double compress_rate = 0;
  /// The number of gradient elements.
  int64_t numel_before_compression = 0;
  /// The number of elements that were sent.
  int64_t numel_after_compression = 0;
  /// The bytes of the gradients.
  int64_t bytes_before_compression = 0;
  /// The bytes that were sent.
  int64_t bytes_after_compression = 0;
};

/// Approximates each gradient of two or more dims by a product of two thin
/// matrices, found by a power iteration step: (rows + columns) * rank numbers
/// instead of rows * columns. Other gradients are averaged uncompressed. Sends
/// two messages per bucket. Half and BFloat16 are sent as such and computed in
/// float32.
/// With equal options and gradients the result is PyTorch's up to rounding,
/// with the same random matrices; but a gradient that is zero or not finite in
/// one step does not affect later steps.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py; Vogels
/// et al., PowerSGD, https://arxiv.org/abs/1905.13727.
class PowerSGDHook : public CommHook {
 public:
  /// Throws: c10::ValueError naming an option that is out of range.
  explicit PowerSGDHook(const PowerSGDOptions& options = {});
  ~PowerSGDHook() override;

  std::string name() const override;
  bool divides() const override { return true; }
  bool can_be_tried() const override { return false; }

  /// Throws: c10::ValueError for a bucket that is not real floating point, or
  /// that does not match the loaded state.
  BucketFuture run(const GradBucket& bucket) override;

  /// Clears errors and factors.
  void on_rebuilt_buckets() override;

  /// Returns the statistics of this rank.
  CompressionStats compression_stats() const;

  /// Entries "iter", "rng", "compression_stats", and for each bucket "error.0"
  /// and "q.0". Later steps do not change them.
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 protected:
  /// The matrices that are factored: each gradient, or the bucket as a square.
  enum class Layout { kGradients, kSquare };
  /// Creates the hook of a derived class.
  PowerSGDHook(const PowerSGDOptions& options, Layout layout);

 private:
  std::shared_ptr<PowerSGD> algorithm_;
};

/// Like PowerSGDHook, with the bucket as one square matrix: faster and less
/// exact.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py,
/// batched_powerSGD_hook.
class BatchedPowerSGDHook : public PowerSGDHook {
 public:
  /// See PowerSGDHook.
  explicit BatchedPowerSGDHook(const PowerSGDOptions& options = {});
};

} // namespace weft::data_parallel
