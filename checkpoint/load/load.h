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

/// The tensors that may be missing on one side.
enum class Strictness {
  /// Checkpoint and state must have the same tensors.
  kExact,
  /// The checkpoint may have tensors that the state lacks.
  kAllowUnexpected,
  /// The state may have tensors that the checkpoint lacks. They keep their
  /// values.
  kAllowMissing,
  kAllowBoth,
};

/// The ranks that read data held by several ranks.
enum class ReadBy {
  /// kOneReplica if the world spans several hosts, otherwise kEveryRank: within
  /// a host the page cache reads each byte once.
  kAuto,
  /// Each rank reads its own parts.
  kEveryRank,
  /// One replica reads, verifies and broadcasts. Each byte is read once.
  kOneReplica,
};

/// The options of load().
struct LoadOptions {
  /// Reads everything before the first tensor changes, so that a damaged
  /// checkpoint leaves all tensors unchanged. Needs memory for a second copy.
  /// If false, a failed load leaves some tensors with new values.
  bool all_or_nothing = true;
  /// The differences between checkpoint and state that are accepted.
  Strictness strictness = Strictness::kExact;
  /// Patterns of base::matches_dotted(). Only tensors whose key matches a
  /// pattern of `include` and none of `exclude` are loaded. An empty `include`
  /// matches all. The other tensors count neither as missing nor as unexpected.
  std::vector<std::string> include = {};
  /// See `include`.
  std::vector<std::string> exclude = {};
  /// Renames the checkpoint's names to the state's keys, "<part>.<name>".
  /// `include` and `exclude` apply to the new names.
  std::vector<RenameRule> rename = {};
  /// Also loads tensors of another dtype. Conversion between floating-point
  /// dtypes rounds, but no finite value may become infinite. In other
  /// conversions every value must be exact in the new dtype. Complex dtypes and
  /// float8_e8m0fnu are not converted.
  bool convert_dtype = false;
  /// The ranks that read from files.
  ReadBy read_by = ReadBy::kAuto;
  /// Refuses a checkpoint that was not saved with this key; see
  /// parse_manifest(). Unused if the caller passes a manifest, which must have
  /// been read with the key.
  std::string hmac_key = {};
  /// The world that loads, as in SaveOptions.
  std::optional<mesh::World> world = std::nullopt;
};

/// The statistics of load() on this rank.
struct LoadStats {
  /// The bytes read from files, including headers.
  int64_t bytes_read = 0;
  /// The keys of the state that were filled. Identical on all ranks.
  std::vector<std::string> loaded = {};
  /// The keys of the state that kept their values because the checkpoint lacks
  /// them. Identical on all ranks.
  std::vector<std::string> missing = {};
  /// The names in the checkpoint that were not loaded.
  std::vector<std::string> unexpected = {};
  /// The policy that was used: kEveryRank or kOneReplica.
  ReadBy read_by = ReadBy::kEveryRank;
};

/// Reads a step folder's manifest on rank 0 and sends it to the other ranks.
/// With an `hmac_key`, each rank checks its HMAC; see parse_manifest().
/// Collective: all ranks of `world`; blocks.
/// Throws: CheckpointError, on all ranks, if rank 0 cannot read it or the check
/// fails on a rank.
Manifest read_manifest(
    const std::filesystem::path& step_folder,
    const std::optional<mesh::World>& world,
    std::string_view hmac_key = {});

/// Fills the tensors of `dicts` in place from a step folder. Placements, device
/// and mesh may differ from those of the save. Reads only the pieces that this
/// rank's parts need, and verifies each of them.
/// Collective: all ranks of the world, with identical keys and options; blocks.
/// Throws: c10::ValueError, identical on all ranks, if tensors are missing,
/// unexpected, or of another shape or dtype (it lists all of them), if a
/// pattern matches nothing, if two names are renamed to one, or if
/// convert_dtype cannot represent a value. CheckpointError, identical on all
/// ranks, naming the rank, file, tensor and offset, if the checkpoint is
/// damaged.
LoadStats load(
    const std::filesystem::path& step_folder,
    const StateDicts& dicts,
    const LoadOptions& options = {});

/// Like load(step_folder, dicts, options), with a manifest that was read
/// before, or made by describe_safetensors().
LoadStats load(
    const std::filesystem::path& step_folder,
    const Manifest& manifest,
    const StateDicts& dicts,
    const LoadOptions& options = {});

} // namespace weft::checkpoint
