#include "base/read_file.h"

#include <array>
#include <cstddef>
#include <fstream>
#include <memory>
#include <utility>

namespace weft::base {

std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  constexpr size_t kPiece = size_t{1} << 16;
  const auto piece = std::make_unique<std::array<char, kPiece>>();
  std::string text;
  while (file) {
    file.read(piece->data(), kPiece);
    text.append(piece->data(), static_cast<size_t>(file.gcount()));
  }
  return file.bad() ? std::nullopt : std::optional(std::move(text));
}

} // namespace weft::base
