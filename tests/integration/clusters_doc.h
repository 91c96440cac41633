#pragma once

#include <stdexcept>
#include <string>

#include "tests/integration/process_fixture.h"

namespace weft::test {

/// The `index`-th script below a heading of docs/clusters.md.
inline std::string script_in_docs(const std::string& heading, int index) {
  const auto text = test::read_text(WEFT_DOCS "/clusters.md");
  auto at = text.find("\n## " + heading + "\n");
  for (int i = 0; at != std::string::npos; ++i) {
    at = text.find("\n```bash\n", at + 1);
    if (at != std::string::npos && i == index) {
      const auto from = text.find("\n", at + 1) + 1;
      return text.substr(from, text.find("\n```", from) + 1 - from);
    }
  }
  throw std::runtime_error("docs/clusters.md: no such script: " + heading);
}

/// A recipe for the four-way tensor parallelism of the scripts.
inline std::string recipe_of_docs() {
  return replaced(
      replaced(kRecipe, "dim: 48", "dim: 64"),
      "heads: 12, kv_heads: 6",
      "heads: 8, kv_heads: 4");
}

/// With weft and weftrun in PATH.
inline Process::Variables path_with_weft() {
  const auto folder = fs::path(WEFT_WEFT).parent_path().string();
  return {{"PATH", folder + ":" + std::getenv("PATH")}};
}

} // namespace weft::test
