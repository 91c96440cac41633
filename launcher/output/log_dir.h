#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/process/local_ranks.h"

namespace weft::launcher {

/// The folder of the run, `<log-dir>/<run-id>_<random>/attempt_<n>/<local
/// rank>/`, accessible to its owner only. Without --log-dir it is a temporary
/// folder that is deleted with this object, unless output was redirected to it.
class LogDir {
 public:
  explicit LogDir(const Options& options);
  ~LogDir();
  LogDir(const LogDir&) = delete;
  LogDir& operator=(const LogDir&) = delete;

  /// Creates the folders of another attempt of workers, which becomes their
  /// current one.
  void begin_attempt(int number, LocalRanks workers);
  /// Returns the path of `name` in the folder of worker `local_rank`.
  std::filesystem::path file(int local_rank, const std::string& name) const;
  /// Returns the folder of the current attempt of worker `local_rank` and of
  /// those that started with it.
  std::filesystem::path attempt(int local_rank) const {
    return root_ / ("attempt_" +
                    std::to_string(attempts_[static_cast<size_t>(local_rank)]));
  }
  /// The folder to delete at the end. Empty if there is none.
  const std::filesystem::path& temporary() const { return temporary_; }

 private:
  std::filesystem::path root_;
  std::filesystem::path temporary_;
  /// The number of the current attempt, by local rank.
  std::vector<int> attempts_;
};

} // namespace weft::launcher
