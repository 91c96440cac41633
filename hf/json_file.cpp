#include "hf/json_file.h"

#include <span>

#include <fmt/format.h>

#include "base/json_text.h"
#include "checkpoint/files/error.h"
#include "checkpoint/format/json_scan.h"
#include "mesh/error/error.h"

namespace weft::hf {

std::string read_small_file(
    const checkpoint::Folder& folder,
    const std::string& name,
    int64_t max_bytes) {
  try {
    const auto file = folder.open_file(name);
    const auto bytes = file.size();
    if (bytes > max_bytes) {
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "{}: got {} bytes, expected at most {}",
          file.path().string(),
          bytes,
          max_bytes));
    }
    std::string text(static_cast<size_t>(bytes), '\0');
    const auto got = file.read_at(0, std::as_writable_bytes(std::span(text)));
    text.resize(static_cast<size_t>(got));
    return text;
  } catch (const checkpoint::CheckpointError& error) {
    // The folder is not a model folder, rather than a damaged checkpoint.
    mesh::throw_error<mesh::UsageError>(error.what_without_backtrace());
  }
}

nlohmann::ordered_json parse_json_object(
    std::string_view text,
    const std::string& source) {
  constexpr int64_t kMaxDepth = 32;
  try {
    checkpoint::check_json_object(text, source, kMaxDepth);
  } catch (const checkpoint::CheckpointError& error) {
    mesh::throw_error<mesh::UsageError>(error.what_without_backtrace());
  }
  return base::parse_json<nlohmann::ordered_json>(text);
}

} // namespace weft::hf
