#include "launcher/output/line_buffer.h"

namespace weft::launcher {

void LineBuffer::append(std::string_view bytes, const OnLine& on_line) {
  for (size_t end; (end = bytes.find('\n')) != std::string_view::npos;
       bytes.remove_prefix(end + 1)) {
    const auto rest = bytes.substr(0, end + 1);
    if (unfinished_.empty()) {
      on_line(rest);
    } else {
      on_line(unfinished_.append(rest));
      unfinished_.clear();
    }
  }
  unfinished_ += bytes;
  if (unfinished_.size() > max_bytes_) {
    finish(on_line);
  }
}

void LineBuffer::finish(const OnLine& on_line) {
  if (!unfinished_.empty()) {
    on_line(unfinished_ + "\n");
    unfinished_.clear();
  }
}

} // namespace weft::launcher
