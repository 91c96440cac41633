#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mesh/communicator/backend.h"

namespace weft::mesh {

/// Which members of a group share a host.
struct HostLayout {
  /// Group ranks by host, hosts in the order of their first member.
  std::vector<std::vector<int64_t>> hosts;
  int64_t own_host = 0;
  /// This rank's position on its host; the first leads it.
  int64_t own_position = 0;

  /// `domains`: a name for every member's host, in group order.
  static HostLayout of(const std::vector<std::string>& domains, int64_t rank);
};

/// The groups that a group over several hosts is made of. All were connected
/// by their members.
struct HostGroups {
  /// The members of this rank's host; null if it is alone there.
  std::shared_ptr<Backend> inside;
  /// The hosts' leaders; null unless this rank is one.
  std::shared_ptr<Backend> leaders;
  /// Connects all members directly, for what has to go between any two of
  /// them. Collective: all members; called once at most.
  std::function<std::shared_ptr<Backend>()> connect_all;
};

/// Collectives in stages: inside every host, between the hosts' leaders, inside
/// again, so that a value crosses the network once a host and not once a rank.
/// Sums are taken inside the hosts first, then over the hosts in order, halves
/// and bfloat16 in float throughout.
std::shared_ptr<Backend> make_hierarchical_backend(
    GroupMembers members,
    HostLayout layout,
    HostGroups groups);

} // namespace weft::mesh
