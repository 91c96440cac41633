#pragma once

#include <filesystem>
#include <string>

#include "launcher/options/options.h"

namespace weft::launcher {

/// The run's folder, `<log-dir>/<run-id>_<random>/attempt_<n>/<local rank>/`,
/// readable by its owner alone. Without --log-dir it is a temporary one that
/// goes with this object, unless output was directed into it.
class LogDir {
 public:
  explicit LogDir(const Options& options);
  ~LogDir();
  LogDir(const LogDir&) = delete;
  LogDir& operator=(const LogDir&) = delete;

  /// Makes the folders of another attempt, the current one from now on.
  void begin_attempt(int number);
  /// `name` in the folder of worker `local_rank`.
  std::filesystem::path file(int local_rank, const std::string& name) const;
  /// The folder of the current attempt.
  std::filesystem::path attempt() const {
    return root_ / ("attempt_" + std::to_string(attempt_));
  }
  /// What is to be removed at the end; empty: nothing.
  const std::filesystem::path& temporary() const { return temporary_; }

 private:
  std::filesystem::path root_;
  std::filesystem::path temporary_;
  int worker_count_;
  int attempt_ = 0;
};

} // namespace weft::launcher
