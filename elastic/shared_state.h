#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/nn/state_dict.h"
#include "mesh/communicator/communicator.h"

namespace weft::elastic {

/// The state that a late replica group gets from another one. Rank t of a group
/// gets that of rank t of the other one: its local tensors.
class SharedState {
 public:
  /// Returns tensors by name that share memory with the state.
  using Get = std::function<dtensor::StateDict()>;
  /// Called with them when a late group has received their content, for state
  /// that does not share their memory.
  using Load = std::function<void(const dtensor::StateDict&)>;

  struct Transfer {
    /// The member that sends.
    int64_t source = 0;
    /// True if this member loads what arrives.
    bool wants = false;
    /// True if what arrives is written to the state at once. If false, it takes
    /// memory of its own, and the state changes when everything has arrived.
    bool in_place = true;
  };

  void add(std::string name, Get get, Load load);

  /// Adds a text that all members must have alike, such as an option.
  void add_text(std::string name, std::string text);

  /// Checks that all members of `group` have the same names, sizes, dtypes and
  /// texts as its rank `source`.
  /// Collective: the members of `group`.
  /// Throws: mesh::DisagreementError naming what differs on a member that
  /// differs, mesh::CommError on the others, which can go on without it.
  void check_alike(mesh::Communicator& group, int64_t source) const;
  /// Sends the state of a member to those that want it. What was received
  /// becomes the state when the returned function is called, which communicates
  /// nothing; tensors that are written in place have changed before.
  /// Collective: the members of `group`.
  /// Throws: mesh::CommError if a member was lost, or if what arrived differs
  /// from what was sent. A state that was written in place is of no use then.
  [[nodiscard]] std::function<void()> transfer(
      mesh::Communicator& group,
      const Transfer& options) const;

 private:
  struct Part {
    std::string name;
    Get get;
    Load load;
  };
  std::string describe() const;

  std::vector<Part> parts_;
  std::vector<std::pair<std::string, std::string>> texts_;
};

} // namespace weft::elastic
