#include "mesh/error/error.h"

#include <utility>

namespace weft::mesh {

std::string first_line_of(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

namespace detail {

void throw_value_error(
    const char* file,
    int line,
    const char* function,
    std::string message) {
  throw c10::ValueError(
      {function, file, static_cast<uint32_t>(line)}, std::move(message));
}

} // namespace detail
void throw_comm_error(std::string message, bool is_timeout) {
  if (is_timeout) {
    throw_error<TimeoutError>(std::move(message));
  }
  throw_error<CommError>(std::move(message));
}

} // namespace weft::mesh
