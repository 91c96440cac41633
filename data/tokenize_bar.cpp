#include "data/tokenize_bar.h"

#include <algorithm>

#include <fmt/format.h>

namespace weft::data {

std::string tokenize_line(const TokenizeProgress& progress, double seconds) {
  const double done_mb = static_cast<double>(progress.bytes_done) * 1e-6;
  return fmt::format(
      "{:.1f}/{:.1f} MB  {:.1f} M tokens  {:.1f} MB/s",
      done_mb,
      static_cast<double>(progress.bytes_total) * 1e-6,
      static_cast<double>(progress.tokens) * 1e-6,
      seconds > 0 ? done_mb / seconds : 0.0);
}

TokenizeBar::TokenizeBar(std::FILE* out, bool is_terminal)
    : out_(out), is_terminal_(is_terminal) {}

TokenizeBar::~TokenizeBar() {
  if (bar_is_drawn_) {
    std::fputc('\n', out_);
    std::fflush(out_);
  }
}

void TokenizeBar::show(const TokenizeProgress& progress) {
  constexpr auto kRedrawEvery = std::chrono::milliseconds(100);
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  const int64_t total = std::max<int64_t>(progress.bytes_total, 1);
  const bool is_done = progress.bytes_done >= progress.bytes_total;
  if (!is_terminal_) {
    constexpr auto kLineEvery = std::chrono::seconds(2);
    const int64_t tenths = 10 * progress.bytes_done / total;
    if (tenths > tenths_ && now - drawn_at_ >= kLineEvery) {
      tenths_ = tenths;
      drawn_at_ = now;
      fmt::print(out_, "{}\n", tokenize_line(progress, seconds));
      std::fflush(out_);
    }
    return;
  }
  if (!is_done && now - drawn_at_ < kRedrawEvery) {
    return;
  }
  constexpr int64_t kCells = 30;
  const auto full = static_cast<size_t>(kCells * progress.bytes_done / total);
  drawn_at_ = now;
  bar_is_drawn_ = true;
  fmt::print(
      out_,
      "\r\x1b[K[{}{}] {}",
      std::string(full, '#'),
      std::string(kCells - full, '.'),
      tokenize_line(progress, seconds));
  std::fflush(out_);
}

} // namespace weft::data
