#pragma once

#include <cstdint>
#include <string>

namespace weft::lighthouse::test {

/// What happened in a schedule, so that one can see that it tests something.
struct Outcome {
  /// Empty if the groups kept to one lineage and trained at the end.
  std::string violation;
  int64_t commits = 0;
  int64_t epochs = 0;
  int64_t generations = 0;
  int64_t lost_groups = 0;
  int64_t lighthouse_starts = 0;
  int64_t rolled_forward = 0;
  int64_t done_again = 0;
  int64_t healed = 0;

  void add(const Outcome& other);
  std::string to_text() const;
};

/// Runs replica groups and lighthouses in simulated time through a schedule of
/// faults that `seed` determines: groups that die, stop and go on, links that
/// are cut, messages that are lost, late, doubled or out of order, clocks that
/// drift, lighthouses that die and start again. Then the faults end, and the
/// groups must train within the lease.
/// The states of groups are followed apart from the protocol's own ids.
Outcome simulate(uint64_t seed);

} // namespace weft::lighthouse::test
