#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mesh/communicator/communicator.h"
#include "mesh/world.h"

namespace weft::mesh {

/// The ranks of a world as a tree, for texts of which one rank needs all: no
/// rank talks to more than `fan_in` others a level, and none but those on the
/// way up holds what is not its own.
class RankTree {
 public:
  static constexpr int64_t kFanIn = 32;

  /// Groups of its own, so that a thread may use it while others use the world.
  /// Collective: all ranks of `world`; blocks.
  explicit RankTree(const World& world, int64_t fan_in = kFanIn);

  /// For the thread that uses the world: without new groups where one level is
  /// enough.
  /// Collective: as the constructor.
  static RankTree shared(const World& world);

  /// On rank 0 every rank's text, by rank; nothing on the others. In an
  /// imagined world this rank's own stands for all.
  /// Collective: all ranks; blocks. Errors name `what`.
  std::vector<std::string> gather(std::string_view text, std::string_view what);
  /// Rank 0's text.
  /// Collective: all ranks; blocks.
  std::string broadcast(std::string_view text, std::string_view what);

 private:
  RankTree(int64_t world_size, std::vector<Communicator> levels)
      : world_size_(world_size), levels_(std::move(levels)) {}

  int64_t world_size_;
  /// Of which this rank is a member, from the leaves up.
  std::vector<Communicator> levels_;
};

} // namespace weft::mesh
