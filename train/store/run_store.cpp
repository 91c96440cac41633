#include "train/store/run_store.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/files/error.h"
#include "checkpoint/load/load.h"
#include "checkpoint/load/newest.h"
#include "checkpoint/store/store.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"
#include "models/registry.h"
#include "train/metrics/metrics_log.h"
#include "train/setup/checkpoint_key.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;

/// Returns true if the key must not change when a run resumes. model.from may
/// change, because the checkpoint replaces the weights.
bool is_fixed(std::string_view key) {
  return (key.starts_with("model.") && key != "model.from") ||
         key.starts_with("lora.") ||
         (key.starts_with("data.") && key != "data.paths") || key == "seed" ||
         key == "train.dtype" || key == "optimizer.type";
}

// Note [Starting over]
// ~~~~~~~~~~~~~~~~~~~~
// --fresh renames the checkpoints and then the metrics, and the process can end
// between the two. The first rename, from checkpoints to checkpoints.aside,
// decides. While that folder exists, metrics that are not empty belong to it,
// because the process that gets the lock of checkpoints first completes the
// renames, before anything is written: the metrics, then the folder, get their
// final names.
constexpr const char* kAside = ".aside";
constexpr const char* kOld = ".old";

fs::path with_suffix(fs::path path, const char* suffix) {
  path += suffix;
  return path;
}

constexpr char kSuccess = '+';
constexpr char kFailed = '-';

/// Runs `act` on rank 0. Returns its text, or throws its error as E, on all
/// ranks.
template <class E>
std::string on_first_rank(
    const mesh::World& world,
    const std::function<std::string()>& act) {
  std::string own;
  if (world.rank() == 0) {
    try {
      own = kSuccess + act();
    } catch (const std::exception& error) {
      mesh::rethrow_if_out_of_memory(error);
      own = kFailed + mesh::message_of(error);
    }
  }
  auto group = world.group();
  const auto answer = mesh::all_gather_text(group, own, "run folder").front();
  if (answer.empty() || answer.front() != kSuccess) {
    mesh::throw_error<E>(answer.substr(std::min<size_t>(answer.size(), 1)));
  }
  return answer.substr(1);
}

// Renames the flight records of an earlier failure
// (mesh/watchdog/flight_files.h). Otherwise they would appear as the records of
// the same ranks in the next failure.
void archive_flight_records(const fs::path& run) {
  const auto records = run / "flight";
  if (!fs::exists(records)) {
    return;
  }
  int number = 1;
  while (fs::exists(run / fmt::format("flight-{}", number))) {
    ++number;
  }
  fs::rename(records, run / fmt::format("flight-{}", number));
}

// Parses the resolved recipe of an earlier run. Adds the options that its model
// did not have then.
config::Recipe parse_earlier(
    const config::Recipe& recipe,
    const std::string& text,
    const std::string& source) {
  auto earlier = config::parse_stored_recipe(
      text, source + " (recipe)", recipe.origins.models);
  models::resolve_options(earlier);
  return earlier;
}

std::string describe_difference(
    const config::Recipe& recipe,
    const config::Recipe& earlier,
    std::string_view key) {
  return fmt::format(
      "{} is {} in the run and {} here",
      key,
      config::value_of(earlier, key),
      config::value_of(recipe, key));
}

void check_same_run(
    const config::Recipe& recipe,
    const std::string& data_fingerprint,
    const RunStore::Earlier& run) {
  const auto& state = run.state;
  const auto earlier =
      parse_earlier(recipe, run.layout.recipe, run.step.folder.path.string());
  std::vector<std::string> differences;
  for (const auto& key : config::differing_keys(recipe, earlier)) {
    if (is_fixed(key)) {
      differences.push_back(describe_difference(recipe, earlier, key));
    }
  }
  if (differences.empty() && state.data_fingerprint != data_fingerprint) {
    differences.push_back(fmt::format(
        "data.paths names other files, or files of other sizes, than those "
        "that the run was trained on ({})",
        config::value_of(earlier, "data.paths")));
  }
  if (!differences.empty()) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{} has a run of another model or other data, at step {}: {}. Choose "
        "another name or output_dir, or start over with --fresh.",
        recipe.output_dir,
        state.step,
        fmt::join(differences, "; ")));
  }
}

} // namespace

struct RunStore::Lock {
  explicit Lock(const fs::path& path) : lock(path) {}
  checkpoint::StoreLock lock;
};

fs::path checkpoints_path(const config::Recipe& recipe) {
  return fs::path(recipe.output_dir) / "checkpoints";
}

std::string metrics_path(const config::Recipe& recipe) {
  return fs::path(recipe.output_dir) / "metrics.jsonl";
}

RunStore::RunStore(
    const config::Recipe& recipe,
    const mesh::World& world,
    bool starts_over,
    base::Logger log,
    bool owns)
    : recipe_(recipe),
      world_(world),
      owns_(owns),
      path_(checkpoints_path(recipe)),
      log_(world.rank() == 0 ? std::move(log) : base::Logger()),
      hmac_key_(read_hmac_key(recipe, [this](const std::string& text) {
        log_.warning(text);
      })) {
  if (owns_) {
    on_first_rank<mesh::UsageError>(world_, [&] {
      open(starts_over);
      return "";
    });
  }
  if (!starts_over) {
    read_earlier();
  }
  saver_ = std::make_unique<RunSaver>(
      path_,
      saver_options(recipe_, world_, hmac_key_),
      recipe_.checkpoint.async,
      log_);
}

RunStore::~RunStore() = default;

// Does not report steps that cannot be read, because resume() does.
void RunStore::read_earlier() {
  const auto newest = checkpoint::find_newest(
      path_,
      world_,
      [&](const auto& step, const checkpoint::Manifest& manifest) {
        const auto source = step.path.string();
        earlier_ = {
            .step = {step, manifest},
            .state = parse_train_state(manifest.state, source),
            .layout = parse_run_layout(manifest.layout, source)};
      },
      {},
      hmac_key_);
  if (!newest.damaged.empty()) {
    newest_step_ = newest.damaged.front();
  } else if (newest.found) {
    newest_step_ = newest.found->step;
  }
}

void RunStore::check_run_fits(
    const config::Recipe& recipe,
    const std::string& data_fingerprint) const {
  if (earlier_) {
    check_same_run(recipe, data_fingerprint, *earlier_);
  }
}

std::string RunStore::take_over() {
  auto problem = on_first_rank<mesh::UsageError>(world_, [&] {
    try {
      lock_ = std::make_unique<Lock>(path_);
      checkpoint::remove_temporaries(path_);
    } catch (const mesh::UsageError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  });
  owns_ = problem.empty();
  return problem;
}

void RunStore::give_up() {
  saver_->finish();
  lock_.reset();
  owns_ = false;
}

void RunStore::open(bool starts_over) {
  MetricsLog::check_writable(metrics_path(recipe_));
  lock_ = std::make_unique<Lock>(path_);
  archive_flight_records(recipe_.output_dir);
  checkpoint::remove_temporaries(path_);
  finish_archiving();
  if (starts_over && !checkpoint::list_steps(path_).empty()) {
    fs::rename(path_, with_suffix(path_, kAside));
    // The lock of the renamed folder is held until the new folder is locked. If
    // another process locks the new folder first, it owns the folder and
    // completes the renames.
    lock_ = std::make_unique<Lock>(path_);
    finish_archiving();
  }
  // If the folder is not writable, this fails before the first save.
  checkpoint::discard_step(checkpoint::begin_step(path_, 0));
}

// See Note [Starting over].
void RunStore::finish_archiving() {
  const auto aside = with_suffix(path_, kAside);
  if (!fs::exists(aside)) {
    return;
  }
  const auto old = with_suffix(path_, kOld);
  const fs::path metrics = metrics_path(recipe_);
  const auto old_metrics = with_suffix(metrics, kOld);
  // The metrics are empty if a process ended after it had renamed them: the
  // check whether they are writable has created a new file.
  if (fs::is_regular_file(metrics) && fs::file_size(metrics) > 0) {
    fs::rename(metrics, old_metrics);
  }
  fs::remove_all(old);
  fs::rename(aside, old);
  log_.info(fmt::format(
      "the checkpoints and metrics that were there are now {} and {}",
      old.string(),
      old_metrics.string()));
}

RunStore::Resumed RunStore::load_step(
    const fs::path& folder,
    const checkpoint::Manifest& manifest,
    const checkpoint::StateDicts& dicts,
    const More& more) const {
  Resumed resumed{
      .state = parse_train_state(manifest.state, folder.string()),
      .layout = parse_run_layout(manifest.layout, folder.string()),
      .folder = folder,
      .more = {}};
  auto all = dicts;
  if (more) {
    resumed.more = more(manifest, resumed.layout);
    all.insert(resumed.more.begin(), resumed.more.end());
  }
  // If the load fails, the tensors are not used: another checkpoint replaces
  // them, or the run ends.
  checkpoint::load(
      folder, manifest, all, {.all_or_nothing = false, .world = world_});
  return resumed;
}

std::optional<RunStore::Resumed> RunStore::resume(
    const checkpoint::StateDicts& dicts,
    const More& more) {
  std::optional<Resumed> resumed;
  const auto newest = checkpoint::find_newest(
      path_,
      world_,
      [&](const auto& step, const checkpoint::Manifest& manifest) {
        resumed = load_step(step.path, manifest, dicts, more);
      },
      [&](const auto& step, const std::string& reason) {
        log_.warning(fmt::format(
            "cannot resume from {}: {}", step.path.string(), reason));
      },
      hmac_key_,
      earlier_ ? std::optional(std::move(earlier_->step)) : std::nullopt);
  earlier_.reset(); // A manifest of many tensors is large.
  const auto& damaged = newest.damaged;
  if (!resumed && !damaged.empty()) {
    mesh::throw_error<checkpoint::CheckpointError>(fmt::format(
        "none of the {} checkpoints in {} can be loaded; the newest is step "
        "{}. Run `weft checkpoint verify {}` to see the damage, or start over "
        "with --fresh.",
        damaged.size(),
        path_.string(),
        damaged.front(),
        path_.string()));
  }
  if (!owns_) { // only the owner renames steps
    return resumed;
  }
  on_first_rank<mesh::UsageError>(world_, [&] {
    for (const int64_t step : damaged) {
      log_.warning(fmt::format(
          "step {} is damaged and was renamed to {}",
          step,
          checkpoint::quarantine_step(path_, step).string()));
    }
    return "";
  });
  return resumed;
}

checkpoint::StepContent RunStore::content(
    const TrainState& state,
    const RunLayout& layout) const {
  return {
      .step = state.step,
      .state = to_json(state, recipe_),
      .layout = to_json(layout)};
}

} // namespace weft::train
