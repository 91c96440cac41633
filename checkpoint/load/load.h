#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/load/key_pattern.h"
#include "checkpoint/save/save.h"
#include "mesh/world.h"

namespace weft::checkpoint {

/// Which tensors may be on one side only.
enum class Strictness {
  /// None.
  kExact,
  /// The checkpoint may have more than the state.
  kAllowUnexpected,
  /// The state may have more than the checkpoint; those stay as they are.
  kAllowMissing,
  kAllowBoth,
};

/// Who reads what several ranks hold alike.
enum class ReadBy {
  /// kOneReplica where the world spans several hosts, else kEveryRank: within a
  /// host the page cache reads a byte once.
  kAuto,
  /// Each rank what it holds.
  kEveryRank,
  /// One of those ranks, which verifies it and sends it to the others: each
  /// byte is read once in all.
  kOneReplica,
};

struct LoadOptions {
  /// Read everything before the first tensor changes, so that a damaged
  /// checkpoint leaves all as it was. Costs memory for a second copy; without,
  /// a failed load leaves tensors with some of the values.
  bool all_or_nothing = true;
  Strictness strictness = Strictness::kExact;
  /// Patterns of base::matches_dotted(). Only tensors whose key matches one of
  /// `include` (empty: all do) and none of `exclude` are loaded; the others are
  /// neither missing nor unexpected.
  std::vector<std::string> include = {};
  std::vector<std::string> exclude = {};
  /// From the checkpoint's names to the state's keys, "<part>.<name>". The
  /// patterns above are for the latter.
  std::vector<RenameRule> rename = {};
  /// Load tensors of another dtype, too. Floating to floating point rounds, but
  /// no finite value may become infinite; else every value must be exact in the
  /// new dtype. Complex dtypes and float8_e8m0fnu are not converted.
  bool convert_dtype = false;
  ReadBy read_by = ReadBy::kAuto;
  /// Refuse a checkpoint that was not saved with this key; see
  /// parse_manifest(). Where a manifest is given, it was to be read with it.
  std::string hmac_key = {};
  /// As in SaveOptions.
  std::optional<mesh::World> world = std::nullopt;
};

/// What load() did on this rank.
struct LoadStats {
  /// Read from files, headers included.
  int64_t bytes_read = 0;
  /// Keys of the state, the same on all ranks: filled, and left as they were
  /// because the checkpoint lacks them.
  std::vector<std::string> loaded = {};
  std::vector<std::string> missing = {};
  /// Names in the checkpoint that were left.
  std::vector<std::string> unexpected = {};
  /// kEveryRank or kOneReplica.
  ReadBy read_by = ReadBy::kEveryRank;
};

/// Reads a step folder's manifest on every rank. `hmac_key`: see
/// parse_manifest().
/// Collective: all ranks of `world`; blocks.
/// Throws: CheckpointError, on all ranks, if one of them cannot read it.
Manifest read_manifest(
    const std::filesystem::path& step_folder,
    const std::optional<mesh::World>& world,
    std::string_view hmac_key = {});

/// Fills the tensors of `dicts`, in place and wherever they lie, from a step
/// folder that was saved on any mesh. Reads only the pieces that this rank's
/// parts touch, and verifies each of them.
/// Collective: all ranks of the world, the same keys and options; blocks.
/// Throws: c10::ValueError, the same on all ranks: one that lists all tensors
/// that are missing, unexpected, of another shape or dtype; a pattern that
/// matches nothing; two names that become one; a value that convert_dtype
/// cannot hold. CheckpointError, the same on all ranks, naming the rank, file,
/// tensor and offset of the damage.
LoadStats load(
    const std::filesystem::path& step_folder,
    const StateDicts& dicts,
    const LoadOptions& options = {});

/// The same with a manifest that was read before, or made by
/// describe_safetensors().
LoadStats load(
    const std::filesystem::path& step_folder,
    const Manifest& manifest,
    const StateDicts& dicts,
    const LoadOptions& options = {});

} // namespace weft::checkpoint
