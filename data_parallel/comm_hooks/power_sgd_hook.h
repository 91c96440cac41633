#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data_parallel/comm_hooks/comm_hook.h"

namespace weft::ddp {

class PowerSGD;

/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py,
/// PowerSGDState.
struct PowerSGDOptions {
  /// Columns of the two factors: more are more exact, and larger.
  int64_t matrix_approximation_rank = 1;
  /// Steps that average without compression before. At least 2 with
  /// use_error_feedback or warm_start, because buckets change after the first.
  int64_t start_powerSGD_iter = 1000;
  /// By what a gradient's size must shrink for it to be compressed.
  double min_compression_rate = 2;
  /// What was lost in a step is added to the next one's gradients.
  bool use_error_feedback = true;
  /// Start from the factor of the step before instead of a random one.
  bool warm_start = true;
  /// Added to the norms of columns if there are up to two.
  double orthogonalization_epsilon = 0;
  /// Of the random factors, the same on all ranks.
  uint32_t random_seed = 0;
  /// Steps between two reports in libtorch's log (level INFO); at least 1.
  int64_t compression_stats_logging_frequency = 10'000;
  /// Gradients of one shape are compressed in one operation, at the price of a
  /// copy.
  bool batch_tensors_with_same_shape = false;
};

/// Since compression began, on this rank.
struct CompressionStats {
  /// numel_before_compression / numel_after_compression.
  double compress_rate = 0;
  int64_t numel_before_compression = 0;
  int64_t numel_after_compression = 0;
  int64_t bytes_before_compression = 0;
  int64_t bytes_after_compression = 0;
};

/// Reduces each gradient of two or more dims as a product of two thin matrices,
/// found by a step of power iteration: (rows + columns) * rank numbers instead
/// of rows * columns. The others are averaged as they are. Two messages a
/// bucket. Halves and bfloat16 are sent as such and computed in float32.
///
/// With the same options and gradients the result is PyTorch's up to rounding,
/// from the same random matrices, except that a gradient that is zero or not
/// finite in one step does no harm to later ones.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py;
/// Vogels et al., PowerSGD, https://arxiv.org/abs/1905.13727.
class PowerSGDHook : public CommHook {
 public:
  /// Throws: c10::ValueError naming an option that is out of range.
  explicit PowerSGDHook(const PowerSGDOptions& options = {});
  ~PowerSGDHook() override;

  std::string name() const override;
  bool divides() const override { return true; }
  bool can_be_tried() const override { return false; }

  /// Throws: c10::ValueError for a bucket that is not of real floating point,
  /// or one that the loaded state does not fit.
  BucketFuture run(const GradBucket& bucket) override;

  /// Forgets errors and factors.
  void on_rebuilt_buckets() override;

  CompressionStats compression_stats() const;

  /// Entries "iter", "rng", "compression_stats", and for each bucket "error.0"
  /// and "q.0". They are not changed by later steps.
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 protected:
  enum class Layout { kGradients, kSquare };
  PowerSGDHook(const PowerSGDOptions& options, Layout layout);

 private:
  std::shared_ptr<PowerSGD> algorithm_;
};

/// The same with the whole bucket as one square matrix: faster, and less
/// exact.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py,
/// batched_powerSGD_hook.
class BatchedPowerSGDHook : public PowerSGDHook {
 public:
  explicit BatchedPowerSGDHook(const PowerSGDOptions& options = {});
};

} // namespace weft::ddp
