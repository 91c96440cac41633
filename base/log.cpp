#include "base/log.h"

#include <array>
#include <cstdio>
#include <ctime>
#include <utility>

#include <unistd.h>

namespace weft::base {
namespace {

struct LevelText {
  std::string_view name;
  std::string_view word;
  /// The ANSI escape sequence of the color. Empty for the terminal's own.
  std::string_view color;
};

/// In the order of LogLevel.
constexpr std::array<LevelText, 4> kLevels{
    {{.name = "debug", .word = "DEBUG", .color = "\x1b[2m"},
     {.name = "info", .word = "INFO", .color = ""},
     {.name = "warning", .word = "WARNING", .color = "\x1b[33m"},
     {.name = "error", .word = "ERROR", .color = "\x1b[31m"}}};

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%H:%M:%S", &parts);
  return text.data();
}

} // namespace

std::string_view to_string(LogLevel level) {
  return kLevels[static_cast<size_t>(level)].name;
}

std::string log_level_error(const std::optional<std::string>& value) {
  return !value || log_level_of(*value)
             ? ""
             : std::string(kLogLevelVariable) + ": got \"" + *value +
                   "\", expected debug, info, warning or error";
}

std::optional<LogLevel> log_level_of(std::string_view name) {
  for (size_t i = 0; i < kLevels.size(); ++i) {
    if (kLevels[i].name == name) {
      return static_cast<LogLevel>(i);
    }
  }
  return std::nullopt;
}

std::string rank_source(int64_t rank) {
  return "rank=" + std::to_string(rank);
}

Logger::Logger(Options options)
    : options_(std::make_shared<const Options>(std::move(options))) {}

Logger Logger::only_if(std::function<bool()> is_wanted) const {
  if (!options_) {
    return {};
  }
  auto options = *options_;
  options.write = [write = options_->write,
                   is_wanted = std::move(is_wanted)](const std::string& line) {
    if (is_wanted()) {
      write(line);
    }
  };
  return Logger(std::move(options));
}

void Logger::log(LogLevel level, std::string_view text) const {
  if (!options_ || text.empty() || level < options_->least) {
    return;
  }
  const auto& shown = kLevels[static_cast<size_t>(level)];
  const bool is_colored = options_->is_colored && !shown.color.empty();
  std::string line = local_time();
  line += ' ';
  line.append(is_colored ? shown.color : "").append(shown.word);
  line.append(is_colored ? "\x1b[0m" : "").append(" ");
  if (!options_->source.empty()) {
    line.append(options_->source).append(" ");
  }
  line.append(text);
  options_->write(line);
}

Logger stderr_logger(
    const std::optional<std::string>& level,
    std::string source) {
  return Logger(
      {.least = log_level_of(level.value_or("")).value_or(LogLevel::kInfo),
       .source = std::move(source),
       .is_colored = ::isatty(STDERR_FILENO) == 1,
       .write = [](const std::string& line) {
         const auto bytes = line + '\n';
         std::fwrite(bytes.data(), 1, bytes.size(), stderr);
       }});
}

} // namespace weft::base
