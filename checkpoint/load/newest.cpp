#include "checkpoint/load/newest.h"

#include "base/string_streams.h"
#include "checkpoint/files/error.h"
#include "checkpoint/save/state_items.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"

namespace weft::checkpoint {
namespace {

constexpr char kListed = '+';
constexpr char kNotListed = '-';

// Returns the steps that rank 0 lists, so that all ranks try the same ones.
std::vector<StepFolder> list_steps_together(
    const std::filesystem::path& checkpoints,
    const std::optional<mesh::World>& world) {
  std::string own;
  if (rank_of(world) == 0) {
    try {
      own = kListed;
      for (const auto& step : list_steps(checkpoints)) {
        own += std::to_string(step.step) + ' ';
      }
    } catch (const std::exception& error) {
      mesh::rethrow_if_out_of_memory(error);
      own = kNotListed + std::string(error.what());
    }
  }
  const auto answer = exchange_texts(world, own).front();
  if (!answer.empty() && answer.front() == kNotListed) {
    mesh::throw_error<CheckpointError>("[checkpoint] " + answer.substr(1));
  }
  std::vector<StepFolder> steps;
  base::StringReader numbers(answer.empty() ? "" : answer.substr(1));
  for (int64_t step = 0; numbers >> step;) {
    steps.push_back({step, step_path(checkpoints, step)});
  }
  return steps;
}

} // namespace

NewestStep find_newest(
    const std::filesystem::path& checkpoints,
    const std::optional<mesh::World>& world,
    const StepAttempt& attempt,
    const SkipNotice& notice,
    const std::string& hmac_key,
    const std::optional<KnownStep>& known) {
  NewestStep result;
  for (const auto& step : list_steps_together(checkpoints, world)) {
    try {
      if (known && known->folder.path == step.path) {
        attempt(step, known->manifest);
      } else {
        attempt(step, read_manifest(step.path, world, hmac_key));
      }
      result.found = step;
      return result;
    } catch (const CheckpointError& error) {
      result.damaged.push_back(step.step);
      if (notice && rank_of(world) == 0) {
        notice(step, error.what_without_backtrace());
      }
    }
  }
  return result;
}

std::optional<LoadedStep> load_newest(
    const std::filesystem::path& checkpoints,
    const StateDicts& dicts,
    const LoadOptions& options,
    const SkipNotice& notice) {
  const auto world =
      find_world(list_items(dicts, "checkpoint.load_newest"), options.world);
  std::optional<LoadedStep> loaded;
  const auto newest = find_newest(
      checkpoints,
      world,
      [&](const StepFolder& step, const Manifest& manifest) {
        auto stats = load(step.path, manifest, dicts, options);
        loaded = {step, manifest, std::move(stats), {}};
      },
      notice,
      options.hmac_key);
  if (!loaded && !newest.damaged.empty()) {
    mesh::throw_error<CheckpointError>(mesh::detail::concat(
        "[checkpoint.load_newest] none of the ",
        newest.damaged.size(),
        " checkpoints in ",
        checkpoints.string(),
        " can be loaded; the newest is step ",
        newest.damaged.front(),
        ". Run `weft checkpoint verify` to see the damage."));
  }
  if (loaded) {
    loaded->damaged = newest.damaged;
  }
  return loaded;
}

} // namespace weft::checkpoint
