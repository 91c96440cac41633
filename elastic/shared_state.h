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
/// gets that of rank t of the other one: its local tensors. See StateTransfer.
class SharedState {
 public:
  /// Returns tensors by name that share memory with the state.
  using Get = std::function<dtensor::StateDict()>;
  /// Called with them when a late group has received their content, for state
  /// that does not share their memory.
  using Load = std::function<void(const dtensor::StateDict&)>;

  /// The tensors of each part, by name.
  using Tensors = std::vector<dtensor::StateDict>;

  void add(std::string name, Get get, Load load);

  /// Adds a text that all members must have alike, such as an option.
  void add_text(std::string name, std::string text);

  /// Checks that all members of `group` have the same names, sizes, dtypes and
  /// texts as its rank `source`.
  /// Collective: the members of `group`.
  /// Throws: mesh::DisagreementError naming what differs on a member that
  /// differs, mesh::CommError on the others, which can go on without it.
  void check_alike(mesh::Communicator& group, int64_t source) const;
  /// Returns the tensors, which share memory with the state.
  Tensors tensors() const;
  /// Says that they have the content of another member's.
  void loaded(const Tensors& tensors) const;

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
