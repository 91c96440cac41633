#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/health/divergence.h"
#include "train/health/replicated_state.h"

namespace weft::ddp {
struct ReplicatedHash;
struct ReplicaMismatch;
} // namespace weft::ddp

namespace weft::recipes {

// Note [Integrity check]
// ~~~~~~~~~~~~~~~~~~~~~~
// A bit that flips in a replica's weights, or an update that is computed wrong
// on one rank, gives no error: the replicas go apart, and every later step adds
// gradients of different models. The sentinel finds it in two ways.
// A seal: what a step does not write between two updates of the optimizer is
// hashed after the one and hashed again before the next. Bits that changed
// meanwhile changed by themselves, and the rank that sees it is the one to
// blame, also where no other rank has a copy. It costs two passes over the
// state a step, and no communication.
// A vote: every few steps, and before every save, the hashes since the last
// time are compared over all copies, replicas and, of tensors that are whole on
// every tensor-parallel rank, those. Of three or more the odd one is named. It
// costs one small message over each dim of the mesh.
// Two copies have no majority where no seal is broken (an update computed
// wrong). Steps are repeated to the bit after a restart, so the ranks' hashes
// of the first step that differs are kept, and the run that goes on says who
// had other ones.
// What is the same on all replicas is not seen: a gradient that is wrong before
// it is reduced, a wrong sum, data.

/// Watches over what must be the same on several ranks, and over memory. See
/// Note [Integrity check].
class IntegrityChecker {
 public:
  /// A line for the user; called on world rank 0 only.
  using LogLine = std::function<void(const std::string&)>;

  /// Lifetime: `recipe` and `job` outlive this.
  IntegrityChecker(const Recipe& recipe, TrainJob& job, LogLine log_line);

  /// Whether check() is due after so many steps, if nothing is saved.
  bool is_due(int64_t step) const;

  /// Before the first step: seals, and compares. Nothing happens, here and in
  /// the functions below, if `integrity_check.every` is 0.
  /// Collective: all ranks of the job's mesh; blocks. Throws: as check().
  void begin(const TrainState& state);

  /// Around an update of the optimizer; this rank's own, without communication.
  /// `state` is that after the step.
  void before_update();
  void after_update(const TrainState& state);

  /// Compares all steps since the last time.
  /// Collective: all ranks of the job's mesh, after the same step; blocks.
  /// Throws, on all ranks: mesh::DisagreementError naming tensor, ranks, steps
  /// and the size of the difference.
  void check(const TrainState& state);

 private:
  /// Numbers and hashes of all that is compared, after a step.
  struct Record {
    int64_t step = 0;
    std::vector<int64_t> values;
  };
  /// The first seal that this rank found broken.
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
  std::vector<ddp::ReplicatedHash> all_numbers() const;
  // In integrity_report.cpp.
  [[noreturn]] void throw_difference(
      const std::vector<ddp::ReplicatedHash>& numbers);
  std::optional<Divergence> memory_corruption() const;
  Divergence difference(const ddp::ReplicaMismatch& vote) const;
  void measure(Divergence& found, size_t tensor) const;
  void keep_tie_record(
      const Divergence& found,
      const ddp::ReplicaMismatch& vote);
  void read_tie_record(int64_t step);
  void compare_with_tie_record();
  std::string advice(const Divergence& found) const;

  const Recipe& recipe_;
  TrainJob& job_;
  LogLine log_line_;
  std::vector<StateTensor> tensors_;
  size_t parameters_in_state_ = 0;
  std::vector<StateNumber> numbers_;
  /// The last record's, of tensors_.
  std::vector<int64_t> hashes_after_update_;
  std::optional<MemoryCorruption> corruption_;
  std::vector<Record> history_;
  int64_t good_step_ = 0;
  std::optional<TieRecord> tie_record_;
};

} // namespace weft::recipes
