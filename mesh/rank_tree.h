#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/communicator.h"
#include "mesh/world.h"

namespace weft::mesh {

/// The ranks of a world as a tree, for texts of which one rank needs all: no
/// rank talks to more than `fan_in` others a level, and none but those on the
/// way up holds what is not its own. Its groups are its own, so a thread of its
/// own may use it while others use the world.
class RankTree {
 public:
  /// Collective: all ranks of `world`; blocks.
  explicit RankTree(const World& world, int64_t fan_in = 32);

  /// On rank 0 every rank's text, by rank; nothing on the others. In an
  /// imagined world this rank's own stands for all.
  /// Collective: all ranks; blocks. Errors name `what`.
  std::vector<std::string> gather(std::string_view text, std::string_view what);
  /// Rank 0's text.
  /// Collective: all ranks; blocks.
  std::string broadcast(std::string_view text, std::string_view what);

 private:
  int64_t world_size_;
  /// Of which this rank is a member, from the leaves up.
  std::vector<Communicator> levels_;
};

} // namespace weft::mesh
