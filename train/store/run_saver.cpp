#include "train/store/run_saver.h"

#include <utility>

#include <fmt/format.h>

namespace weft::train {
namespace {

std::string describe_save(int64_t step, const checkpoint::SaveStats& stats) {
  const auto background = stats.total - stats.blocked;
  return background.count() > 0
             ? fmt::format(
                   "saved step {} ({:.2f} s in the background, {:.3f} s "
                   "blocked)",
                   step,
                   background.count(),
                   stats.blocked.count())
             : fmt::format(
                   "saved step {} ({:.2f} s)", step, stats.total.count());
}

} // namespace

checkpoint::SaverOptions saver_options(
    const config::Recipe& recipe,
    const mesh::World& world,
    std::string hmac_key) {
  const auto& checkpoint = recipe.checkpoint;
  return {
      .world = world,
      .fsync = checkpoint.fsync,
      .keep = checkpoint.keep,
      .bytes_per_second = static_cast<int64_t>(checkpoint.max_mb_per_s * 1e6),
      .sha256 = checkpoint.checksum == config::Checksum::kSha256,
      .hmac_key = std::move(hmac_key)};
}

RunSaver::RunSaver(
    std::filesystem::path checkpoints,
    checkpoint::SaverOptions options,
    bool is_async,
    base::Logger log)
    : saver_(std::move(checkpoints), std::move(options)),
      is_async_(is_async),
      log_(std::move(log)) {}

void RunSaver::prepare(const checkpoint::StateDicts& dicts) {
  if (is_async_) {
    saver_.prepare_async(dicts);
  }
}

bool RunSaver::save(
    const checkpoint::StateDicts& dicts,
    const checkpoint::StepContent& content) {
  if (in_flight_) {
    end_flight();
  }
  if (!is_async_) {
    return try_save(dicts, content);
  }
  try {
    saver_.save_async(dicts, content);
    in_flight_ = content.step;
  } catch (const checkpoint::SaveError& error) {
    log_.warning(error.what_without_backtrace());
  }
  return false;
}

bool RunSaver::save_now(
    const checkpoint::StateDicts& dicts,
    const checkpoint::StepContent& content) {
  finish();
  return try_save(dicts, content) || try_save(dicts, content);
}

void RunSaver::poll() {
  if (in_flight_ && !saver_.is_in_flight()) {
    end_flight();
  }
}

bool RunSaver::try_save(
    const checkpoint::StateDicts& dicts,
    const checkpoint::StepContent& content) {
  try {
    saver_.save(dicts, content);
  } catch (const checkpoint::SaveError& error) {
    log_.warning(error.what_without_backtrace());
    return false;
  }
  const auto stats = saver_.stats();
  log_.info(describe_save(content.step, stats));
  log_.warning(stats.note);
  return true;
}

bool RunSaver::finish() {
  saver_.unthrottle();
  return in_flight_ && end_flight();
}

bool RunSaver::end_flight() {
  const auto step = *std::exchange(in_flight_, std::nullopt);
  try {
    saver_.wait();
  } catch (const checkpoint::SaveError& error) {
    log_.warning(error.what_without_backtrace());
    return false;
  }
  const auto stats = saver_.stats();
  log_.info(describe_save(step, stats));
  log_.warning(stats.note);
  return true;
}

} // namespace weft::train
