#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

namespace weft::test {

/// What matters to a reader of YAML.
inline constexpr std::string_view kRecipeFragments[] = {
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    ",",
    "- ",
    "? ",
    "\n",
    "\r\n",
    "\t",
    "  ",
    "#",
    "'",
    "\"",
    "&a ",
    "*a",
    "!!int ",
    "! ",
    "|\n",
    ">-\n",
    "---\n",
    "...\n",
    "%TAG\n",
    "<<: ",
    "~",
    "null",
    ".nan",
    "-.inf",
    "1e999",
    "0o7",
    "0x1F",
    "no",
    "-1",
    "\\",
    "\\x00",
    "\\U0010ffff",
    "\xef\xbb\xbf",
    "\xff",
    "\xc3\xa9",
    "@",
    "`",
    "{foo:",
    "99999999999999999999",
    "model:",
    "dp: 2",
    "[[[[[[[[",
    "{a: {a: {a: {a: "};

/// Changes the text of a recipe in a few places, always in the same way for a
/// seed.
class RecipeMutator {
 public:
  explicit RecipeMutator(uint64_t seed) : random_(seed) {}

  std::string mutate(std::string text) {
    for (uint64_t n = 1 + below(6); n > 0; --n) {
      change(text);
    }
    return text;
  }

  uint64_t below(uint64_t limit) { return random_() % limit; }

 private:
  void change(std::string& text) {
    const size_t at = below(text.size() + 1);
    const size_t length = std::min(text.size() - at, below(12));
    switch (below(6)) {
      case 0:
        text.insert(at, kRecipeFragments[below(std::size(kRecipeFragments))]);
        break;
      case 1:
        text.replace(
            at, length, kRecipeFragments[below(std::size(kRecipeFragments))]);
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(below(text.size() + 1), text.substr(at, length * 4));
        break;
      case 4:
        text.insert(at, 1, static_cast<char>(below(256)));
        break;
      default:
        text.resize(at);
        break;
    }
  }

  std::mt19937_64 random_;
};

} // namespace weft::test
