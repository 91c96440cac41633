#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mesh/communicator/communicator.h"
#include "mesh/world.h"

namespace weft::mesh {

/// A tree over the ranks of a world that collects strings on one rank. No rank
/// communicates with more than `fan_in` others per level, and only ranks on the
/// path to the root hold other ranks' data.
class RankTree {
 public:
  static constexpr int64_t kFanIn = 32;

  /// Creates the tree with groups of its own, so that one thread may use it
  /// while others use the world.
  /// Collective: all ranks of `world`; blocks.
  explicit RankTree(const World& world, int64_t fan_in = kFanIn);

  /// Creates a tree for the thread that uses the world. It creates no groups if
  /// one level is enough.
  /// Collective: all ranks of `world`; blocks.
  static RankTree shared(const World& world);

  /// Returns the string of every rank, by rank, on rank 0 and nothing on the
  /// other ranks. With a fake process group this rank's string stands for all.
  /// Errors name `what`.
  /// Collective: all ranks; blocks.
  std::vector<std::string> gather(std::string_view text, std::string_view what);
  /// Returns rank 0's string.
  /// Collective: all ranks; blocks.
  std::string broadcast(std::string_view text, std::string_view what);

 private:
  RankTree(int64_t world_size, std::vector<Communicator> levels)
      : world_size_(world_size), levels_(std::move(levels)) {}

  int64_t world_size_;
  /// The groups that this rank belongs to, from the leaves up.
  std::vector<Communicator> levels_;
};

} // namespace weft::mesh
