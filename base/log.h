#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace weft::base {

/// The importance of a log line.
enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// The environment variable with the least level that is logged.
inline constexpr const char* kLogLevelVariable = "WEFT_LOG_LEVEL";

/// Returns "debug", "info", "warning" or "error".
std::string_view to_string(LogLevel level);
/// Returns the level of that name. Empty if there is none.
std::optional<LogLevel> log_level_of(std::string_view name);
/// Describes the error in a value of kLogLevelVariable. Empty if there is none.
std::string log_level_error(const std::optional<std::string>& value);

/// Returns "rank=3", the source of a rank's lines.
std::string rank_source(int64_t rank);

/// Writes log lines: "10:35:58 INFO rank=0 <text>", with the local time. A copy
/// writes to the same place. Thread-safe if `Options::write` is.
class Logger {
 public:
  struct Options {
    /// Lines below this level are dropped.
    LogLevel least = LogLevel::kInfo;
    /// The program or rank that logs, e.g. rank_source(0). May be empty.
    std::string source = {};
    /// Colors the level. Only for terminals.
    bool is_colored = false;
    /// Writes a line, which has no line feed at its end.
    std::function<void(const std::string& line)> write = {};
  };

  /// Drops all lines.
  Logger() = default;
  explicit Logger(Options options);

  /// Returns a logger that drops a line if `is_wanted` returns false.
  Logger only_if(std::function<bool()> is_wanted) const;

  /// These functions log `text`, which may have several lines: only the first
  /// has the prefix. An empty text is not logged.
  void debug(std::string_view text) const { log(LogLevel::kDebug, text); }
  void info(std::string_view text) const { log(LogLevel::kInfo, text); }
  void warning(std::string_view text) const { log(LogLevel::kWarning, text); }
  void error(std::string_view text) const { log(LogLevel::kError, text); }
  void log(LogLevel level, std::string_view text) const;

 private:
  /// Null drops all lines.
  std::shared_ptr<const Options> options_;
};

/// Returns a logger that writes each line to standard error in one call, so
/// that ranks that share a terminal do not mix their lines. `level` is the
/// value of kLogLevelVariable; another text than a level means info.
Logger stderr_logger(
    const std::optional<std::string>& level,
    std::string source = {});

} // namespace weft::base
