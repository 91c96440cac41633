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

/// One save as seen by this rank. All members must be identical on all ranks,
/// except for `files`, `error` and `is_unthrottled`.
struct CollectiveSave {
  std::filesystem::path checkpoints;
  StepContent content;
  SaverOptions options;
  /// The end of the temporary folder's name, new for each save of each run.
  std::string nonce;
  /// All tensors of the state.
  std::vector<StateItem> items;
  /// The reason why this rank has nothing to write, which is reported to the
  /// other ranks. Empty if it can write.
  std::string error = {};
  /// Setting `*is_unthrottled` lifts the limit `options.bytes_per_second`. Null
  /// keeps it.
  const std::atomic<bool>* is_unthrottled = nullptr;
  /// The tensors of this rank's files, in order.
  std::vector<std::vector<FileTensor>> files;
};

/// Writes this rank's files, reports to rank 0, which commits, and receives the
/// result. Returns, on rank 0, a sentence about a slow rank or about what
/// failed after the commit (moving `latest`, deleting old steps). Empty if
/// there is nothing to report.
/// Collective: all ranks of `tree`; blocks. Without a tree this rank saves
/// alone.
/// Throws: SaveError, on all ranks, if a rank cannot write or the commit fails;
/// mesh::DisagreementError, on all ranks, if the ranks' states differ.
std::string save_collectively(
    const CollectiveSave& save,
    std::optional<mesh::RankTree>& tree);

/// Returns random text that is identical on all ranks.
/// Collective: all ranks of `tree`; blocks.
std::string agree_on_nonce(std::optional<mesh::RankTree>& tree);

} // namespace weft::checkpoint
