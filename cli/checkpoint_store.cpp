#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/files/error.h"
#include "checkpoint/files/folder.h"
#include "checkpoint/store/store.h"
#include "checkpoint/verify.h"
#include "cli/checkpoint_text.h"
#include "cli/progress_bar.h"
#include "mesh/error/error.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointError;
using Json = nlohmann::ordered_json;

struct PruneArguments : OutputOptions {
  std::string run;
  int64_t keep = 0;
  bool dry_run = false;
};

fs::path store_of(const std::string& path, const char* command) {
  const auto checkpoints = checkpoints_of(path);
  if (checkpoint::Folder::open(checkpoints).has(checkpoint::kManifestName)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{} is a single checkpoint, but weft checkpoint {} expects the folder "
        "of a run. To inspect this checkpoint, run weft checkpoint inspect {}",
        path,
        command,
        path));
  }
  return checkpoints;
}

// Returns the row of a checkpoint, also if it cannot be read. "valid" is what
// was checked, "manifest" or "bytes". It is null for a damaged checkpoint.
Json describe_step(
    const checkpoint::StepFolder& step,
    const CheckpointArguments& arguments,
    const std::string& key,
    ProgressBar& bar) {
  Json row = {{"step", step.step}, {"path", step.path.string()}};
  std::optional<std::string> damage;
  try {
    const auto manifest = checkpoint::read_manifest(step.path, key);
    row["created"] = manifest.created;
    row["bytes"] = bytes_of(manifest);
    row["mesh"] = mesh_of(manifest);
    row["tensors"] = manifest.tensors.size();
    row["files"] = manifest.files.size();
    if (arguments.verify) {
      const auto damages = checkpoint::verify(step.path, key, bar.callback());
      if (!damages.empty()) {
        damage = to_string(damages.front());
      }
    }
  } catch (const CheckpointError& error) {
    damage = error.what_without_backtrace();
  }
  row["valid"] = damage             ? Json()
                 : arguments.verify ? Json("bytes")
                                    : Json("manifest");
  row["damage"] = damage ? Json(*damage) : Json();
  return row;
}

std::string text_of(const Json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end()) {
    return "-";
  }
  if (found->is_string()) {
    const auto text = found->get<std::string>();
    return text.empty() ? "-" : text;
  }
  return std::string_view(key) == "bytes" ? size_text(found->get<int64_t>())
                                          : found->dump();
}

std::vector<std::string> cells_of(const Json& row) {
  std::vector<std::string> cells;
  for (const char* key :
       {"step", "created", "bytes", "mesh", "tensors", "files", "valid"}) {
    cells.push_back(text_of(row, key));
  }
  if (!row["damage"].is_null()) {
    cells.back() = "damaged: " + row["damage"].get<std::string>();
  }
  cells.back() += row["latest"].get<bool>() ? "  latest" : "";
  return cells;
}

void print_rows(const Json& rows) {
  std::vector<std::vector<std::string>> lines = {
      {"step", "saved", "size", "mesh", "tensors", "files", "valid"}};
  for (const auto& row : rows) {
    lines.push_back(cells_of(row));
  }
  print_table(lines, "><><>><");
}

// Throws CheckpointError if a checkpoint is damaged, so that the exit code of a
// verification reports it, too.
void refuse_damaged(const Json& rows) {
  std::string damaged;
  for (const auto& row : rows) {
    if (!row["damage"].is_null()) {
      damaged += fmt::format(
          "{}step {}: {}",
          damaged.empty() ? "" : "; ",
          row["step"].get<int64_t>(),
          row["damage"].get<std::string>());
    }
  }
  if (!damaged.empty()) {
    mesh::throw_error<CheckpointError>(damaged);
  }
}

void list(const CheckpointArguments& arguments) {
  const auto key = read_key(arguments.hmac_key_file);
  const auto checkpoints = store_of(arguments.path, "ls");
  const auto latest = checkpoint::read_latest(checkpoints);
  ProgressBar bar("verifying", arguments.wants_progress());
  Json rows = Json::array();
  for (const auto& step : checkpoint::list_steps(checkpoints)) {
    rows.push_back(describe_step(step, arguments, key, bar));
    rows.back()["latest"] = step.step == latest;
  }
  bar.erase();
  if (arguments.json) {
    print(Json{{"checkpoints", checkpoints.string()}, {"steps", rows}});
  } else if (rows.empty()) {
    print(fmt::format("no checkpoints in {}", checkpoints.string()));
  } else {
    print_rows(rows);
  }
  if (arguments.verify) {
    refuse_damaged(rows);
  }
}

// Returns the steps that prune_steps() will try to delete.
std::vector<int64_t> old_steps(const fs::path& checkpoints, int64_t keep) {
  const auto latest = checkpoint::read_latest(checkpoints);
  const auto steps = checkpoint::list_steps(checkpoints);
  std::vector<int64_t> old;
  for (size_t i = static_cast<size_t>(keep); i < steps.size(); ++i) {
    if (steps[i].step != latest) {
      old.push_back(steps[i].step);
    }
  }
  return old;
}

std::string step_words(const std::vector<int64_t>& steps) {
  return fmt::format(
      "{} {}", steps.size() == 1 ? "step" : "steps", fmt::join(steps, ", "));
}

// Throws CheckpointError if a step that would be kept is damaged. Otherwise a
// damaged step could be all that remains of a run.
void check_kept(const fs::path& checkpoints, const std::vector<int64_t>& old) {
  for (const auto& step : checkpoint::list_steps(checkpoints)) {
    if (std::ranges::find(old, step.step) != old.end()) {
      continue;
    }
    try {
      checkpoint::read_manifest(step.path);
    } catch (const checkpoint::CheckpointError& error) {
      mesh::throw_error<checkpoint::CheckpointError>(fmt::format(
          "step {}, which would be kept, is damaged: {}. Nothing was deleted. "
          "Move the folder of that step away first, or raise --keep",
          step.step,
          error.what_without_backtrace()));
    }
  }
}

void prune(const PruneArguments& arguments) {
  const auto checkpoints = store_of(arguments.run, "prune");
  std::optional<checkpoint::StoreLock> lock;
  if (!arguments.dry_run) {
    lock.emplace(checkpoints);
  }
  const auto old = old_steps(checkpoints, arguments.keep);
  check_kept(checkpoints, old);
  const auto gone = arguments.dry_run
                        ? old
                        : checkpoint::prune_steps(checkpoints, arguments.keep);
  std::vector<int64_t> pinned;
  for (const auto step : old) {
    if (std::ranges::find(gone, step) == gone.end()) {
      pinned.push_back(step);
    }
  }
  std::vector<int64_t> kept;
  for (const auto& step : checkpoint::list_steps(checkpoints)) {
    const bool is_gone = std::ranges::find(gone, step.step) != gone.end();
    if (!is_gone) {
      kept.push_back(step.step);
    }
  }
  if (arguments.json) {
    print(Json{
        {"checkpoints", checkpoints.string()},
        {"dry_run", arguments.dry_run},
        {"deleted", gone},
        {"kept", kept},
        {"pinned", pinned}});
    return;
  }
  print(
      gone.empty() ? "nothing to delete"
                   : fmt::format(
                         "{} {}",
                         arguments.dry_run ? "would delete" : "deleted",
                         step_words(gone)));
  if (!pinned.empty()) {
    print(fmt::format(
        "{} stayed: another process reads there", step_words(pinned)));
  }
}

} // namespace

void add_checkpoint_store(CLI::App& checkpoint) {
  const auto listed = std::make_shared<CheckpointArguments>();
  auto* lister =
      checkpoint.add_subcommand("ls", "List the checkpoints of a run");
  lister->add_option("run", listed->path, "A run, or its folder of checkpoints")
      ->required();
  lister->add_flag(
      "--verify",
      listed->verify,
      "Read every byte. Without it, only manifests are read");
  add_key(*lister, listed->hmac_key_file);
  add_json(*lister, *listed);
  add_quiet(*lister, *listed);
  lister->callback([listed] { list(*listed); });

  const auto pruned = std::make_shared<PruneArguments>();
  auto* pruner = checkpoint.add_subcommand(
      "prune",
      "Delete all checkpoints of a run except the newest ones and latest");
  pruner->add_option("run", pruned->run, "A run, or its folder of checkpoints")
      ->required();
  pruner
      ->add_option(
          "--keep", pruned->keep, "The number of newest checkpoints to keep")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}));
  pruner->add_flag(
      "--dry-run,--dry_run",
      pruned->dry_run,
      "List the checkpoints that would be deleted, and delete none");
  add_json(*pruner, *pruned);
  pruner->callback([pruned] { prune(*pruned); });
}

} // namespace weft::cli
