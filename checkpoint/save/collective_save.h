#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/save/saver.h"
#include "checkpoint/save/state_items.h"
#include "checkpoint/tensors/tensor_file.h"
#include "mesh/rank_tree.h"

namespace weft::checkpoint {

/// One save as this rank sees it. What all ranks must give alike: everything
/// but `files`.
struct CollectiveSave {
  std::filesystem::path checkpoints;
  StepContent content;
  SaverOptions options;
  /// Ends the temporary folder's name: new for each save of each run.
  std::string nonce;
  /// What is saved, every tensor of it.
  std::vector<StateItem> items;
  /// Why this rank has nothing to write, if so; the others learn of it.
  std::string error = {};
  /// Once set, `options.bytes_per_second` no longer holds. Null: it does.
  const std::atomic<bool>* is_unthrottled = nullptr;
  /// The first, second... file of this rank.
  std::vector<std::vector<FileTensor>> files;
};

/// Writes this rank's files, tells the first rank, which commits, and learns
/// whether that went well. Returns what could not be cleaned up afterwards, a
/// sentence, on the first rank; mostly nothing.
/// Collective: all ranks of `tree`; blocks. Without a tree one rank is alone.
/// Throws, on all ranks: SaveError; mesh::DisagreementError.
std::string save_collectively(
    const CollectiveSave& save,
    std::optional<mesh::RankTree>& tree);

/// Random text, the same on all ranks.
/// Collective: all ranks of `tree`; blocks.
std::string agree_on_nonce(std::optional<mesh::RankTree>& tree);

} // namespace weft::checkpoint
