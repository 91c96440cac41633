#include "checkpoint/load/load.h"

#include <algorithm>
#include <functional>

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include "checkpoint/files/error.h"
#include "checkpoint/load/load_replicas.h"
#include "checkpoint/load/load_selection.h"
#include "checkpoint/load/shard_loader.h"
#include "checkpoint/save/state_items.h"
#include "checkpoint/store/store.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"

// Note [How ranks load together]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Every rank checks what can be checked with the manifest alone, with equal
// results. Then each rank reads. A rank that fails takes part in the next
// exchange, so that no rank waits for it. With ReadBy::kOneReplica, the ranks
// exchange an error flag before the values of each batch are broadcast. In both
// modes they exchange their errors before load() succeeds. With all_or_nothing,
// no tensor changes before this exchange.

namespace weft::checkpoint {
namespace {

constexpr const char* kLoadOp = "checkpoint.load";
constexpr int64_t kBatchBytes = 256 << 20;

// The kinds of errors. Only kDamaged is the fault of the checkpoint, so a
// caller can retry with an older one.
constexpr char kDamaged = 'd';
constexpr char kUnfit = 'u';
constexpr char kNoFolder = 'n';
constexpr char kFailed = 'f';
/// The first character of a message that contains a manifest, not an error.
constexpr char kText = 't';

/// Returns "" if `act` succeeds, otherwise the kind of the error and its text.
std::string error_of(const std::function<void()>& act) {
  try {
    act();
    return "";
  } catch (const ConversionError& error) {
    return kUnfit + std::string(error.what_without_backtrace());
  } catch (const CheckpointError& error) {
    return kDamaged + std::string(error.what_without_backtrace());
  } catch (const mesh::UsageError& error) {
    return kNoFolder + std::string(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return kFailed + mesh::message_of(error);
  }
}

void throw_first_error(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) {
      continue;
    }
    auto text = errors[rank].substr(1);
    if (errors.size() > 1) {
      text += mesh::detail::concat(" (rank ", rank, ")");
    }
    switch (errors[rank].front()) {
      case kDamaged:
        mesh::throw_error<CheckpointError>(text);
      case kUnfit:
        mesh::throw_error<c10::ValueError>(text);
      case kNoFolder:
        mesh::throw_error<mesh::UsageError>(text);
      default:
        mesh::throw_error<c10::Error>("[checkpoint.load] " + text);
    }
  }
}

bool fails_anywhere(const mesh::World& world, const std::string& error) {
  const auto flag = at::full({1}, error.empty() ? 0 : 1, at::kInt);
  auto group = world.group();
  group.all_reduce(flag, mesh::ReduceOp::kMax, "checkpoint").wait();
  return flag.item<int>() != 0;
}

ReadBy choose_readers(ReadBy asked, const std::optional<mesh::World>& world) {
  // Ranks of a fake process group send nothing.
  if (!world || world->world_size() == 1 || world->backend() == "fake") {
    return ReadBy::kEveryRank;
  }
  if (asked != ReadBy::kAuto) {
    return asked;
  }
  return world->local_world_size() < world->world_size() ? ReadBy::kOneReplica
                                                         : ReadBy::kEveryRank;
}

// Throws on all ranks if they load different tensors or use different options.
// Otherwise they would wait for each other or load different steps.
void check_ranks_agree(
    const std::vector<StateItem>& items,
    const Manifest& manifest,
    const LoadOptions& options,
    const std::optional<mesh::World>& world) {
  if (!world) {
    return;
  }
  auto lines = describe_items(items);
  for (const auto* patterns : {&options.include, &options.exclude}) {
    lines.push_back(c10::Join(" ", *patterns));
  }
  for (const auto& rule : options.rename) {
    lines.push_back(rule.pattern + " -> " + rule.replacement);
  }
  lines.push_back(mesh::detail::concat(
      "step ",
      manifest.step,
      ", strictness ",
      static_cast<int>(options.strictness),
      ", read_by ",
      static_cast<int>(options.read_by),
      ", convert_dtype ",
      options.convert_dtype));
  auto group = world->group();
  mesh::check_lines_match(
      group,
      lines,
      {.op = kLoadOp,
       .what = "what to load",
       .hint = "Load the same tensors with the same options on every rank.",
       .where = mesh::detail::concat(
           "rank ", world->rank(), "/", world->world_size())});
}

/// Reads and broadcasts the tensors. Returns the error of this rank, which may
/// be the `error` of an earlier step. `reading` is empty only if `error` is
/// not.
std::string read_one_replica(
    const std::vector<LoadTarget>& targets,
    const mesh::World& world,
    std::optional<ShardLoader>& reading,
    std::string error) {
  const LoadReplicas replicas(targets, world);
  for (const auto& [first, last] : replicas.batches(kBatchBytes)) {
    std::vector<at::Tensor> parts;
    if (error.empty()) {
      error = error_of([&, first = first, last = last] {
        for (size_t i = first; i < last; ++i) {
          if (replicas.is_reader(i)) {
            reading->read(i);
          }
          parts.push_back(reading->buffer(i));
        }
      });
    }
    if (fails_anywhere(world, error)) {
      break;
    }
    replicas.broadcast(first, parts);
    parts.clear();
    error = error_of([&, first = first, last = last] {
      for (size_t i = first; i < last; ++i) {
        reading->convert(i);
      }
    });
  }
  return error;
}

void read_own(size_t targets, ShardLoader& reading) {
  for (size_t i = 0; i < targets; ++i) {
    reading.read(i);
    reading.convert(i);
  }
}

} // namespace

Manifest read_manifest(
    const std::filesystem::path& step_folder,
    const std::optional<mesh::World>& world,
    std::string_view hmac_key) {
  const bool reads = rank_of(world) == 0;
  Manifest manifest;
  std::string own;
  if (reads) {
    std::string text;
    own = error_of([&] {
      text = read_manifest_text(Folder::open(step_folder));
      manifest = parse_step_manifest(text, step_folder, hmac_key);
    });
    if (own.empty()) {
      own = kText + text;
    }
  }
  const auto answers = exchange_texts(world, own);
  if (!answers.front().starts_with(kText)) {
    throw_first_error(answers);
  }
  // The check can fail on this rank alone, because its key may differ.
  const auto error = reads ? std::string() : error_of([&] {
    manifest =
        parse_step_manifest(answers.front().substr(1), step_folder, hmac_key);
  });
  throw_first_error(exchange_texts(world, error));
  return manifest;
}

LoadStats load(
    const std::filesystem::path& step_folder,
    const Manifest& manifest,
    const StateDicts& dicts,
    const LoadOptions& options) {
  const auto items = list_items(dicts, kLoadOp);
  const auto world = find_world(items, options.world);
  check_ranks_agree(items, manifest, options, world);
  std::vector<std::string> parts;
  for (const auto& [part, dict] : dicts) {
    parts.push_back(part);
  }
  auto selection = select_tensors(step_folder, manifest, items, parts, options);
  const auto& targets = selection.targets;

  LoadStats stats;
  stats.read_by = choose_readers(options.read_by, world);
  std::optional<StepPin> pin;
  std::optional<ShardLoader> reading;
  auto own = error_of([&] {
    pin.emplace(step_folder);
    reading.emplace(pin->folder(), manifest, targets, options.all_or_nothing);
    if (stats.read_by == ReadBy::kEveryRank) {
      read_own(targets.size(), *reading);
    }
  });
  if (stats.read_by == ReadBy::kOneReplica) {
    own = read_one_replica(targets, *world, reading, std::move(own));
  }
  throw_first_error(exchange_texts(world, own));
  reading->commit();
  stats.bytes_read = reading->bytes_read();
  for (const auto& target : targets) {
    stats.loaded.push_back(target.item.item.key);
  }
  stats.missing = std::move(selection.missing);
  stats.unexpected = std::move(selection.unexpected);
  return stats;
}

LoadStats load(
    const std::filesystem::path& step_folder,
    const StateDicts& dicts,
    const LoadOptions& options) {
  const auto world = find_world(list_items(dicts, kLoadOp), options.world);
  return load(
      step_folder,
      read_manifest(step_folder, world, options.hmac_key),
      dicts,
      options);
}

} // namespace weft::checkpoint
