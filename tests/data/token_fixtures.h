#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/data_error.h"
#include "data/token_file.h"
#include "data/tokenize.h"
#include "tests/config/fixtures.h"

/// Helpers of the tests of token files.
namespace weft::data::token_test {

using Ids = std::vector<int64_t>;

template <class T>
std::string packed(const std::vector<T>& values) {
  return {
      reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline Ids all_of(const TokenFile& file) {
  Ids tokens(static_cast<size_t>(file.size()));
  file.read(0, tokens);
  return tokens;
}

template <class Body>
std::string data_error(Body&& body) {
  return fixtures::message_of<DataError>(std::forward<Body>(body));
}

inline std::string open_error(
    const std::string& path,
    TokenFormat format = TokenFormat::kAuto) {
  return data_error([&] { TokenFile::open(path, format); });
}

inline const std::string kTokenizers =
    WEFT_SOURCE_DIR "/tests/tokenizers/oracle/tokens/";

inline TokenizeOptions to(
    const fixtures::TempFolder& folder,
    std::vector<std::string> inputs) {
  return {.inputs = std::move(inputs), .output = folder / "out.bin"};
}

} // namespace weft::data::token_test
