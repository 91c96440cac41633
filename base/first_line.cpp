#include "base/first_line.h"

#include <fstream>

namespace weft::base {

std::optional<std::string> first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? std::optional(line) : std::nullopt;
}

} // namespace weft::base
