#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/communicator/communicator.h"

namespace weft::elastic {

// Note [Lanes]
// ~~~~~~~~~~~~
// Floating-point sums depend on the order of additions, so a run whose groups
// come and go would round differently after each loss. Lanes prevent that. The
// number of lanes is fixed for the run; each computes its part of the batch as
// one data-parallel rank would. A group computes one or more consecutive lanes,
// one after another. What the lanes have is added element by element in the
// order of lanes, whichever groups have computed them: the same bits.
//
// A group keeps what its earlier lanes have until its last lane. Then the ranks
// send each other every lane's share of the elements, each adds its own share
// and sends the sum to all. If each rank has one lane, this is an all_reduce
// that adds in rank order, as one over shared memory does; if one rank has all
// lanes, it adds them alone and sends the sum to those that get the state.

/// The lanes of the groups of an epoch, and what is added over them. See Note
/// [Lanes].
class Lanes {
 public:
  /// `count` is 0 if there are none.
  explicit Lanes(int64_t count) : count_(count) {}

  bool are_used() const { return count_ > 0; }
  /// Throws: c10::ValueError if there are lanes, but fewer than `groups`.
  void check_enough_for(int64_t groups) const;

  /// Divides the lanes among the ranks of an epoch's group that count, in the
  /// order of ranks. `rank` is that of this group.
  void divide(const std::vector<bool>& counts, int64_t rank);
  /// The lanes [begin, end) of this group. One that does not count computes the
  /// first lane, and what it has is not added.
  std::pair<int64_t, int64_t> own() const;

  /// Forgets what an earlier step has left.
  void begin_step();
  /// Throws: c10::ValueError unless `lane` is the next one of this group, and
  /// none is entered.
  void enter(int64_t lane);
  void leave() { current_.reset(); }
  bool is_inside() const { return current_.has_value(); }
  /// Throws: c10::ValueError naming a lane that was left out, or something that
  /// is not added in all lanes.
  void check_complete() const;

  /// Adds `tensor` over the lanes: keeps it unless this is the last lane of the
  /// group, and else starts the addition. Returns a function that waits for the
  /// sum, in `tensor`. Inside a lane only. The n-th call with a name in a lane
  /// belongs to the n-th one in the others. If one rank has all lanes,
  /// `send_sum` is called in its last one, and in that of the others, to start
  /// to send `tensor` from it.
  /// Collective in the last lane: the ranks of `group`, including the function
  /// that is returned. Throws: CommError; c10::ValueError if an earlier lane
  /// had no tensor of this size with the name.
  std::function<void()> start_sum(
      mesh::Communicator group,
      const at::Tensor& tensor,
      std::string_view name,
      const std::function<std::function<void()>()>& send_sum);

 private:
  struct Share {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
  };
  bool is_last() const { return *current_ + 1 == own().second; }
  bool has_one_each() const;
  std::optional<int64_t> only_rank() const;
  std::vector<at::Tensor> take_earlier(
      const std::string& key,
      const at::Tensor& own,
      std::string_view name);
  std::string key_of(std::string_view name);

  int64_t count_;
  /// The lanes of each rank of the epoch's group.
  std::vector<Share> lanes_of_;
  int64_t rank_ = 0;
  std::optional<int64_t> current_;
  int64_t next_ = 0;
  /// How often each name was added in the current lane.
  std::map<std::string, int64_t, std::less<>> calls_;
  /// The flat tensors of this group's earlier lanes.
  std::map<std::string, std::vector<at::Tensor>> kept_;
};

/// The time in which a group computes a lane: see Step::enter_lane().
class LaneScope {
 public:
  /// Used by Step.
  explicit LaneScope(Lanes& lanes) : lanes_(&lanes) {}
  /// `other` no longer ends the lane.
  LaneScope(LaneScope&& other) noexcept
      : lanes_(std::exchange(other.lanes_, nullptr)) {}
  LaneScope& operator=(LaneScope&&) = delete;
  ~LaneScope() {
    if (lanes_ != nullptr) {
      lanes_->leave();
    }
  }

 private:
  Lanes* lanes_;
};

} // namespace weft::elastic
