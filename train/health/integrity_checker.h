#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "train/health/divergence.h"
#include "train/health/replicated_state.h"

namespace weft::data_parallel {
struct ReplicatedHash;
struct ReplicaMismatch;
} // namespace weft::data_parallel

namespace weft::train {

// Note [Integrity check]
// ~~~~~~~~~~~~~~~~~~~~~~
// A bit that flips in a replica's weights, or an update that is computed wrong
// on one rank, gives no error: the replicas go apart, and every later step adds
// gradients of different models. The integrity check finds it in two ways.
// A hash: what a step does not write between two updates of the optimizer is
// hashed after the one and hashed again before the next. Bits that changed
// meanwhile changed by themselves, and the rank that sees it is the one to
// blame, also where no other rank has a copy. It costs two passes over the
// state a step, and no communication.
// A vote: every few steps, and before every save, the hashes since the last
// time are compared over all copies, replicas and, of tensors that are whole on
// every tensor-parallel rank, those. Of three or more the deviating one is
// named. It costs one small message over each dim of the mesh. Two copies have
// no majority where no hash is broken (an update computed wrong). Steps are
// repeated bitwise after a restart, so the ranks' hashes of the first step that
// differs are kept, and the run that goes on says who had other ones. What is
// the same on all replicas is not seen: a gradient that is wrong before it is
// reduced, a wrong sum, data.

/// Checks that values which must be identical on several ranks are identical,
/// and detects memory corruption. See Note [Integrity check].
class IntegrityChecker {
 public:
  /// Lifetime: `recipe` and `job` must outlive this.
  IntegrityChecker(
      const config::Recipe& recipe,
      TrainJob& job,
      base::Logger log);

  /// Returns true if check() is due after `step` steps even without a save.
  bool is_due(int64_t step) const;

  /// Hashes the state before the first step and compares the hashes. This
  /// function and the functions below do nothing if `integrity_check.every` is
  /// 0.
  /// Collective: all ranks of the job's mesh; blocks.
  /// Throws: like check().
  void begin(const TrainState& state);

  /// To be called before and after each update of the optimizer. They verify
  /// and record this rank's hashes without communication. `state` is the state
  /// after the step.
  void before_update();
  void after_update(const TrainState& state);

  /// Compares the hashes of all steps since the last check.
  /// Collective: all ranks of the job's mesh, after the same step; blocks.
  /// Throws: mesh::DisagreementError on all ranks if hashes differ or a rank
  /// found memory corruption; it has the tensor, the ranks, the steps and the
  /// size of the difference.
  void check(const TrainState& state);

 private:
  /// The numbers and hashes that are compared for one step.
  struct Record {
    int64_t step = 0;
    std::vector<int64_t> values;
  };
  /// The first tensor on this rank whose hash differs from the one that was
  /// recorded after the last update of the optimizer.
  struct MemoryCorruption {
    size_t tensor = 0;
    int64_t step = 0;
    bool is_before_update = false;
  };

  bool hashes_weights() const;
  void list_tensors();
  void record(const TrainState& state);
  void halve_history();
  void verify_hashes(bool is_before_update);
  std::vector<data_parallel::ReplicatedHash> all_numbers() const;
  // In integrity_report.cpp.
  [[noreturn]] void throw_difference(
      const std::vector<data_parallel::ReplicatedHash>& numbers);
  std::optional<Divergence> memory_corruption() const;
  Divergence difference(const data_parallel::ReplicaMismatch& vote) const;
  void measure(Divergence& found, size_t tensor) const;
  void keep_tie_record(
      const Divergence& found,
      const data_parallel::ReplicaMismatch& vote);
  void read_tie_record(int64_t step);
  void compare_with_tie_record();
  std::string advice(const Divergence& found) const;

  const config::Recipe& recipe_;
  TrainJob& job_;
  base::Logger log_;
  std::vector<StateTensor> tensors_;
  size_t parameters_in_state_ = 0;
  std::vector<StateNumber> numbers_;
  /// The hashes of tensors_ in the last record.
  std::vector<int64_t> hashes_after_update_;
  std::optional<MemoryCorruption> corruption_;
  std::vector<Record> history_;
  int64_t good_step_ = 0;
  std::optional<TieRecord> tie_record_;
};

} // namespace weft::train
