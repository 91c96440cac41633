#include "launcher/program.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <unistd.h>

#include <fmt/format.h>

#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

namespace fs = std::filesystem;

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

std::string search_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path candidate =
        fs::path(folder.empty() ? "." : folder) / program;
    if (is_program(candidate)) {
      return candidate;
    }
  }
  throw LaunchError(fmt::format(
      "program '{}' is not in PATH.{}",
      program,
      fs::exists(program) ? fmt::format(" Did you mean ./{}?", program)
                          : std::string(" Give its path.")));
}

} // namespace

std::string find_program(const std::string& program) {
  if (program.find('/') == std::string::npos) {
    return search_path(program);
  }
  std::error_code error;
  if (!fs::exists(program, error)) {
    throw LaunchError(fmt::format(
        "program '{}' does not exist (in {}).",
        program,
        fs::current_path(error).string()));
  }
  if (fs::is_directory(program, error)) {
    throw LaunchError(
        fmt::format("program '{}' is a folder, not a program.", program));
  }
  if (!is_program(program)) {
    throw LaunchError(fmt::format(
        "program '{}' is not executable. Run chmod +x on it, or name its "
        "interpreter first.",
        program));
  }
  return program;
}

} // namespace weft::launcher
