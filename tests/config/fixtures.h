#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "config/recipe.h"
#include "tests/support/temp_folder.h"

namespace weft::fixtures {

/// A test::TempFolder whose paths are text, as those of recipes are.
class TempFolder {
 public:
  /// Writes a file and the folders it needs; gives its path.
  std::string write(const std::string& name, std::string_view text) const {
    const auto path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::string operator/(const std::string& name) const {
    return folder_ / name;
  }
  std::string path() const { return folder_.path(); }

 private:
  test::TempFolder folder_;
};

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// What `E` says that `body` throws; "" if it throws nothing.
template <class E, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// The least that a recipe says.
inline constexpr std::string_view kMinRecipe =
    "model: {dim: 64, layers: 2, heads: 4, ffn_dim: 128}\n"
    "data: {paths: [text.txt]}\n";

inline std::string min_and(std::string_view more) {
  std::string text(kMinRecipe);
  return text.append(more);
}

} // namespace weft::fixtures
