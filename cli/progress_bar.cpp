#include "cli/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "cli/checkpoint_text.h"

namespace weft::cli {
namespace {

constexpr std::string_view kEraseRow = "\r\x1b[K";

int64_t columns_of(std::FILE* out) {
  constexpr int64_t kUnknown = 80;
  winsize size{};
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0
             ? size.ws_col
             : kUnknown;
}

} // namespace

std::string progress_line(
    std::string_view verb,
    int64_t done,
    int64_t total,
    double bytes_per_s,
    std::string_view what,
    int64_t columns) {
  const auto part =
      total <= 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  auto text = fmt::format(
      "{} {:3.0f}% of {}  {:.1f} MB/s",
      verb,
      100 * std::clamp(part, 0.0, 1.0),
      size_text(total),
      bytes_per_s * 1e-6);
  const auto width = static_cast<size_t>(std::max<int64_t>(columns, 1));
  if (text.size() + 2 + what.size() <= width) {
    text += fmt::format("  {}", what);
  }
  return text.substr(0, width);
}

ProgressBar::ProgressBar(std::FILE* out, Options options)
    : out_(out), options_(std::move(options)), began_(Clock::now()) {}

ProgressBar::ProgressBar(std::string verb, bool is_wanted)
    : ProgressBar(
          stderr,
          {std::move(verb), is_wanted && ::isatty(STDERR_FILENO) == 1, 0}) {}

ProgressBar::~ProgressBar() {
  erase();
}

void ProgressBar::erase() {
  if (is_drawn_) {
    std::fwrite(kEraseRow.data(), 1, kEraseRow.size(), out_);
    std::fflush(out_);
    is_drawn_ = false;
  }
}

checkpoint::Progress ProgressBar::callback() {
  if (!options_.is_shown) {
    return {};
  }
  return [this](int64_t done, int64_t total, std::string_view what) {
    update(done, total, what);
  };
}

void ProgressBar::update(int64_t done, int64_t total, std::string_view what) {
  constexpr auto kRedrawEvery = std::chrono::milliseconds(100);
  const auto now = Clock::now();
  if (done < last_done_) { // another task begins
    began_ = now;
  }
  last_done_ = done;
  if (!options_.is_shown || (done < total && now - drawn_at_ < kRedrawEvery)) {
    return;
  }
  drawn_at_ = now;
  const std::chrono::duration<double> passed = now - began_;
  const auto rate =
      passed.count() > 0 ? static_cast<double>(done) / passed.count() : 0.0;
  const auto columns =
      options_.columns > 0 ? options_.columns : columns_of(out_);
  // The last column stays free: some terminals wrap when it is written.
  const auto line =
      progress_line(options_.verb, done, total, rate, what, columns - 1);
  erase();
  std::fwrite(line.data(), 1, line.size(), out_);
  std::fflush(out_);
  is_drawn_ = true;
}

} // namespace weft::cli
