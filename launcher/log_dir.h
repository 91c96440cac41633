#pragma once

#include <filesystem>
#include <string>

#include "launcher/options.h"

namespace weft::launcher {

/// The run's folder, `<log-dir>/<run-id>_<random>/attempt_0/<local rank>/`,
/// readable by its owner alone. Without --log-dir it is a temporary one that
/// goes with this object, unless output was directed into it.
class LogDir {
 public:
  explicit LogDir(const Options& options);
  ~LogDir();
  LogDir(const LogDir&) = delete;
  LogDir& operator=(const LogDir&) = delete;

  /// `name` in the folder of worker `local_rank`.
  std::filesystem::path file(int local_rank, const std::string& name) const;
  /// The folder of this attempt.
  std::filesystem::path attempt() const { return root_ / "attempt_0"; }
  /// What is to be removed at the end; empty: nothing.
  const std::filesystem::path& temporary() const { return temporary_; }

 private:
  std::filesystem::path root_;
  std::filesystem::path temporary_;
};

} // namespace weft::launcher
