#pragma once

#include <locale>
#include <sstream>
#include <string>

namespace weft::base {

// Note [Streams and failed allocations]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A stream of the standard library that cannot allocate memory catches
// std::bad_alloc and keeps the part of the text that it has. Ranks compare
// texts, so the one without memory would report another state than its peers
// have. These two throw std::bad_alloc.

/// A std::ostringstream that throws std::bad_alloc instead of ending the text
/// early. Numbers do not follow the user's locale: 4000, not 4.000.
class StringWriter : public std::ostringstream {
 public:
  StringWriter() {
    imbue(std::locale::classic());
    exceptions(std::ios::badbit);
  }
};

/// A std::istringstream that throws std::bad_alloc instead of reading less.
/// Numbers do not follow the user's locale.
class StringReader : public std::istringstream {
 public:
  explicit StringReader(const std::string& text) : std::istringstream(text) {
    imbue(std::locale::classic());
    exceptions(std::ios::badbit);
  }
};

} // namespace weft::base
