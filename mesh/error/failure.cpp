#include "mesh/error/failure.h"

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

#include <c10/util/Exception.h>

#include "base/string_streams.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

template <size_t N>
bool contains_any(
    const std::string& text,
    const std::array<std::string_view, N>& words) {
  for (const auto word : words) {
    if (text.find(word) != std::string::npos) {
      return true;
    }
  }
  return false;
}

// Returns the first sentence of the message, without gloo's
// "[/path/pair.cc:123] ".
std::string first_cause(const std::exception& error) {
  auto text = message_of(error);
  const size_t path = text.find("[/");
  const size_t path_end = text.find("] ", path);
  if (path != std::string::npos && path_end != std::string::npos) {
    text.erase(path, path_end + 2 - path);
  }
  text = text.substr(0, std::min(text.find('\n'), text.find(". ")));
  while (text.ends_with('.')) {
    text.pop_back();
  }
  return text;
}

} // namespace

std::string message_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  return c10_error ? c10_error->what_without_backtrace() : error.what();
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return message_of(e);
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

std::string format_seconds(std::chrono::milliseconds duration) {
  base::StringWriter out;
  out << std::chrono::duration<double>(duration).count() << " s";
  return out.str();
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    return true;
  }
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  if (c10_error == nullptr ||
      dynamic_cast<const c10::DistError*>(&error) != nullptr) {
    return false; // A DistError may quote the error of another rank.
  }
  constexpr std::array<std::string_view, 2> kWords{
      "can't allocate memory", kOutOfMemory};
  return contains_any(c10_error->what_without_backtrace(), kWords);
}

void rethrow_if_out_of_memory(const std::exception& error) {
  if (is_out_of_memory(error)) {
    throw;
  }
}

GroupFailure failure_reason(
    const std::exception& error,
    std::chrono::milliseconds timeout) {
  constexpr std::array<std::string_view, 5> kTimedOut{
      "imed out", "imeout", "TIMEOUT", "time out", "onnect timeout"};
  constexpr std::array<std::string_view, 6> kPeerLost{
      "losed by peer",
      "reset by peer",
      "roken pipe",
      "onnection closed",
      "ocket closed",
      "onnection refused"};
  std::string cause = first_cause(error);
  // Checked before timeouts, because gloo's text for a lost peer may mention a
  // timeout, too.
  if (contains_any(cause, kPeerLost)) {
    return {"A peer is gone: " + cause};
  }
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr ||
      contains_any(cause, kTimedOut)) {
    return {
        .reason = "Timed out after " + format_seconds(timeout) +
                  "; not all ranks took part: " + cause,
        .is_timeout = true};
  }
  return {cause};
}

} // namespace weft::mesh
