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

  /// Returns lines "<name> <value>" of numbers that all members must have alike
  /// when they apply a step.
  using Describe = std::function<std::string()>;

  /// Sets a text that all members must have alike, such as an option.
  void set_text(const std::string& name, std::string text);
  /// Adds numbers that may change from step to step.
  void add_numbers(std::string name, Describe describe);

  /// Checks that all members of `group` have the same names, sizes, dtypes and
  /// texts as its rank `source`.
  /// Collective: the members of `group`.
  /// Throws: mesh::DisagreementError naming what differs on a member that
  /// differs, mesh::CommError on the others, which can go on without it.
  void check_alike(mesh::Communicator& group, int64_t source) const;
  /// Returns a hash of the texts and numbers that this member has now.
  uint64_t hash_of_numbers() const;
  /// Throws: mesh::DisagreementError on all members with the first text or
  /// number in which a member differs from rank 0; nothing if all are alike.
  /// Collective: the members of `group`.
  void check_numbers(mesh::Communicator& group, int64_t step) const;
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
  std::string describe_numbers() const;

  std::vector<Part> parts_;
  std::vector<std::pair<std::string, Describe>> numbers_;
  std::vector<std::pair<std::string, std::string>> texts_;
};

} // namespace weft::elastic
