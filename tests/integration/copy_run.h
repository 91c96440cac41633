#pragma once

#include <filesystem>
#include <string>

namespace weft::test {

/// Makes `to` the folder of a run that has what the run in `from` saved at
/// `step`, and its metrics.
inline void copy_run_at(
    int step,
    const std::filesystem::path& from,
    const std::filesystem::path& to) {
  namespace fs = std::filesystem;
  const auto saved = fs::path("checkpoints") / ("step-" + std::to_string(step));
  fs::create_directories(to / "checkpoints");
  fs::copy(from / saved, to / saved, fs::copy_options::recursive);
  fs::copy(from / "metrics.jsonl", to / "metrics.jsonl");
}

} // namespace weft::test
