#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elastic/link/lighthouse_link.h"
#include "lighthouse/messages.h"

namespace weft::elastic {

/// The replica groups that train together from a step on, and what has changed
/// since the quorum before.
struct Quorum {
  struct Lost {
    int64_t group = 0;
    /// "SIGKILL", "exit code 150". Empty if weftrun does not know it to have
    /// ended.
    std::string why;
  };

  /// Tells the runs of weftrun apart; a later one has a larger number.
  uint64_t lighthouse = 0;
  /// Counted by weftrun since its start. Epochs without a step are left out.
  int64_t epoch = 0;
  /// The first step, counted from 0.
  int64_t step = 0;
  /// Numbers of replica groups, in the order of their ranks.
  std::vector<int64_t> groups;
  /// The life of each: a group that is started again has another one.
  std::vector<lighthouse::GroupId> lives;
  std::vector<int64_t> joined;
  std::vector<Lost> lost;
  /// The time from the end of the epoch before, or from the end of the process
  /// that was lost, until the groups have met.
  double reconfigure_ms = 0;
  /// How many steps were begun again.
  int64_t steps_redone = 0;
  /// The state that this group has sent to another one, in bytes, and how long
  /// that took.
  int64_t state_bytes = 0;
  double state_ms = 0;
};

/// Sets who has joined and who was lost since `before`. `why` is asked for the
/// reason of each loss, with the life and the number of the group.
void set_changes(
    const Quorum& before,
    const std::function<std::string(lighthouse::GroupId life, int64_t group)>&
        why,
    Quorum& quorum);

/// Puts the quorums of a group together.
class QuorumRecorder {
 public:
  /// Takes the connection through which weftrun says why a group was lost.
  explicit QuorumRecorder(std::shared_ptr<LighthouseLink> link);

  /// Says that the groups of an epoch have met. `numbers` are those of the
  /// replica groups, in the order of `epoch.members`. `left` is the time at
  /// which this group left the epoch before, or 0.
  void enter(
      const lighthouse::Epoch& epoch,
      const std::vector<int64_t>& numbers,
      lighthouse::Time left,
      lighthouse::Time now);
  void begin_step(int64_t step);
  void note_transfer(int64_t bytes, double ms);
  /// Says that a step is committed.
  void commit(int64_t step);
  /// Returns the quorum of the last commit if it is another one than before.
  std::optional<Quorum> take();

 private:
  struct Ended {
    lighthouse::Time when{0};
    std::string why;
  };
  std::optional<Ended> ended(lighthouse::GroupId group) const;

  const std::shared_ptr<LighthouseLink> link_;
  int64_t begun_step_ = -1;
  /// The last one with a commit.
  Quorum last_;
  bool is_taken_ = true;
  /// The one that has no commit yet.
  std::optional<Quorum> next_;
};

} // namespace weft::elastic
