#include "train/metrics/progress.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

namespace weft::train {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

std::string duration_text(double ms) {
  if (!std::isfinite(ms) || ms < 0) {
    return "--:--";
  }
  const auto seconds = std::llround(std::min(ms / 1000.0, 3.6e8));
  const auto minutes = seconds / 60;
  return minutes < 60
             ? fmt::format("{}:{:02}", minutes, seconds % 60)
             : fmt::format(
                   "{}:{:02}:{:02}", minutes / 60, minutes % 60, seconds % 60);
}

double part_done(const StepMetrics& metrics, int64_t total_steps) {
  return std::clamp(
      static_cast<double>(metrics.step) / static_cast<double>(total_steps),
      0.0,
      1.0);
}

} // namespace

std::string step_line(const StepMetrics& metrics, int64_t total_steps) {
  return fmt::format(
      "step {}/{}  loss {:.4f}  grad_norm {:.2f}  lr {:.1e}  {:.0f} tokens/s",
      metrics.step,
      total_steps,
      metrics.loss,
      metrics.grad_norm,
      metrics.lr,
      metrics.tokens_per_s);
}

std::string bar_line(
    const StepMetrics& metrics,
    int64_t total_steps,
    double eta_ms,
    int64_t columns) {
  constexpr int64_t kMaxBar = 40;
  constexpr int64_t kMinBar = 6;
  const auto width = static_cast<size_t>(std::max<int64_t>(columns, 1));
  std::string text = fmt::format("{}/{}", metrics.step, total_steps);
  const std::vector<std::string> parts = {
      fmt::format("  loss {:.4f}", metrics.loss),
      fmt::format("  {:.0f} tokens/s", metrics.tokens_per_s),
      fmt::format("  ETA {}", duration_text(eta_ms))};
  for (const std::string& part : parts) {
    if (text.size() + part.size() > width) {
      break;
    }
    text += part;
  }
  const int64_t room = columns - static_cast<int64_t>(text.size()) - 3;
  if (room < kMinBar) {
    return text.substr(0, width);
  }
  const int64_t cells = std::min(room, kMaxBar);
  const auto full = static_cast<int64_t>(
      part_done(metrics, total_steps) * static_cast<double>(cells));
  return fmt::format(
      "[{}{}] {}",
      std::string(static_cast<size_t>(full), '#'),
      std::string(static_cast<size_t>(cells - full), '.'),
      text);
}

Progress::Progress(std::FILE* out, Options options)
    : out_(out), options_(options) {}

Progress::~Progress() {
  if (bar_is_drawn_) {
    std::fputc('\n', out_);
    std::fflush(out_);
  }
}

void Progress::step_done(const StepMetrics& metrics) {
  const bool is_first = last_.step == 0;
  const bool is_last = metrics.step >= options_.total_steps;
  last_ = metrics;
  mean_step_ms_ =
      is_first ? metrics.step_ms : 0.9 * mean_step_ms_ + 0.1 * metrics.step_ms;
  if (!options_.is_terminal) {
    if (is_first || is_last || metrics.step % options_.log_every == 0) {
      message(step_line(metrics, options_.total_steps));
    }
    return;
  }
  constexpr auto kRedrawEvery = std::chrono::milliseconds(50);
  const auto now = Clock::now();
  if (is_first || is_last || now - drawn_at_ >= kRedrawEvery) {
    drawn_at_ = now;
    draw_bar();
  }
}

void Progress::eval_done(const StepMetrics& metrics) {
  auto line = fmt::format(
      "step {}/{}  eval_loss {:.4f}",
      metrics.step,
      options_.total_steps,
      metrics.eval_loss.value_or(0));
  if (metrics.ema_eval_loss) {
    line += fmt::format("  ema_eval_loss {:.4f}", *metrics.ema_eval_loss);
  }
  message(line);
}

void Progress::message(std::string_view text) {
  const bool redraw = bar_is_drawn_;
  erase_bar();
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fputc('\n', out_);
  if (redraw) {
    draw_bar();
  }
  std::fflush(out_);
}

int64_t Progress::columns() const {
  constexpr int64_t kUnknown = 80;
  if (options_.columns > 0) {
    return options_.columns;
  }
  winsize size{};
  return ::ioctl(::fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 0
             ? size.ws_col
             : kUnknown;
}

void Progress::erase_bar() {
  if (bar_is_drawn_) {
    std::fwrite(kEraseLine.data(), 1, kEraseLine.size(), out_);
    bar_is_drawn_ = false;
  }
}

void Progress::draw_bar() {
  erase_bar();
  const auto steps_left =
      static_cast<double>(options_.total_steps - last_.step);
  // The last column stays free: some terminals wrap when it is written.
  const std::string line = bar_line(
      last_, options_.total_steps, steps_left * mean_step_ms_, columns() - 1);
  std::fwrite(line.data(), 1, line.size(), out_);
  std::fflush(out_);
  bar_is_drawn_ = true;
}

} // namespace weft::train
