#include "launcher/report/backtrace.h"

#include <cxxabi.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "base/stacks/symbols.h"

namespace weft::launcher {
namespace {

constexpr size_t kMaxNameBytes = 100;

struct Frame {
  int number = 0;
  std::string module;
  uint64_t offset = 0;
  /// The symbol that the process found. May be empty.
  std::string symbol;
};

std::optional<uint64_t> parse_hex(std::string_view text) {
  uint64_t value = 0;
  const auto [stop, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<Frame> parse_frame(std::string_view line) {
  const size_t space = line.find(' ');
  const size_t module_end = line.find("(+0x");
  const size_t offset_end = line.find(')', module_end);
  if (!line.starts_with('#') || space == std::string_view::npos ||
      offset_end == std::string_view::npos || module_end < space) {
    return std::nullopt;
  }
  Frame frame;
  std::from_chars(line.data() + 1, line.data() + space, frame.number);
  frame.module = line.substr(space + 1, module_end - space - 1);
  const auto offset =
      parse_hex(line.substr(module_end + 4, offset_end - module_end - 4));
  if (!offset) {
    return std::nullopt;
  }
  frame.offset = *offset;
  const size_t symbol = offset_end + 2;
  if (symbol < line.size()) {
    frame.symbol = line.substr(symbol, line.rfind('+') - symbol);
  }
  return frame;
}

std::string demangle(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
      &std::free);
  return name ? name.get() : symbol;
}

std::string shorten(std::string name) {
  if (name.size() > kMaxNameBytes) {
    name.resize(kMaxNameBytes);
    name += "...";
  }
  return name;
}

/// Returns true if the symbol belongs to abort() or to throwing, whatever the
/// cause.
bool is_about_aborting(const std::string& symbol) {
  constexpr std::array<std::string_view, 7> kNames{
      "abort",
      "gsignal",
      "raise",
      "pthread_kill",
      "_ZSt9terminatev",
      "_ZN9__gnu_cxx27__verbose_terminate_handlerEv",
      "__cxa_throw"};
  return std::ranges::find(kNames, symbol) != kNames.end();
}

/// Returns true if the frame is an internal function of glibc or libstdc++,
/// which has no exported name.
bool is_inner(const Frame& frame) {
  return frame.symbol.empty() &&
         (frame.module.find("/libc.so") != std::string::npos ||
          frame.module.find("/libstdc++.so") != std::string::npos);
}

/// Returns the first frame of the function that called abort() or threw.
/// Returns begin() if there is neither.
std::vector<Frame>::const_iterator after_abort(
    const std::vector<Frame>& frames) {
  auto begin = frames.begin();
  for (auto frame = frames.begin(); frame != frames.end(); ++frame) {
    if (is_about_aborting(frame->symbol)) {
      begin = frame + 1;
    } else if (!is_inner(*frame)) {
      break;
    }
  }
  return begin;
}

std::string show(const Frame& frame) {
  const std::string module = std::filesystem::path(frame.module).filename();
  // A return address may be behind the end of its function.
  const std::string symbol =
      !frame.symbol.empty()
          ? frame.symbol
          : base::symbol_at(
                frame.module, frame.offset - (frame.number == 0 ? 0 : 1));
  if (symbol.empty()) {
    return fmt::format("#{} {} +{:#x}", frame.number, module, frame.offset);
  }
  return fmt::format(
      "#{} {} in {}", frame.number, shorten(demangle(symbol)), module);
}

} // namespace

std::vector<std::string> readable_frames(
    std::string_view callstack,
    size_t most) {
  std::vector<Frame> frames;
  while (!callstack.empty()) {
    const size_t end = std::min(callstack.find('\n'), callstack.size());
    if (auto frame = parse_frame(callstack.substr(0, end))) {
      frames.push_back(std::move(*frame));
    }
    callstack.remove_prefix(std::min(end + 1, callstack.size()));
  }
  std::vector<std::string> lines;
  for (auto frame = after_abort(frames);
       frame != frames.end() && lines.size() < most;
       ++frame) {
    lines.push_back(show(*frame));
  }
  return lines;
}

} // namespace weft::launcher
