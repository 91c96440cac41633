#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mesh/communicator/backend.h"

namespace weft::mesh {

/// The members of a group by host.
struct HostLayout {
  /// The group ranks of each host. Hosts are in the order of their first
  /// member.
  std::vector<std::vector<int64_t>> hosts;
  int64_t own_host = 0;
  /// This rank's position on its host. The rank at position 0 is the host's
  /// leader.
  int64_t own_position = 0;

  /// Builds the layout from the host name of every member, in group order.
  static HostLayout of(const std::vector<std::string>& domains, int64_t rank);
};

/// The connected subgroups of a group that spans several hosts.
struct HostGroups {
  /// The members on this rank's host. Null if this rank is alone there.
  std::shared_ptr<Backend> inside;
  /// The leaders of all hosts. Null unless this rank is a leader.
  std::shared_ptr<Backend> leaders;
  /// Connects all members directly, for messages between arbitrary members.
  /// Called at most once.
  /// Collective: all members.
  std::function<std::shared_ptr<Backend>()> connect_all;
};

/// Runs collectives in stages: within every host, between the hosts' leaders,
/// and within every host again, so that a value crosses the network once per
/// host instead of once per rank. Reductions add within the hosts first and
/// then over the hosts in order; Half and BFloat16 accumulate in float.
std::shared_ptr<Backend> make_hierarchical_backend(
    GroupMembers members,
    HostLayout layout,
    HostGroups groups);

} // namespace weft::mesh
