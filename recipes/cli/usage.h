#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
} // namespace CLI

namespace weft::recipes::cli {

/// What is wrong with a command line that `app` refused: the unknown word and
/// what may have been meant by it, or what is missing.
std::string explain_usage(const CLI::App& app, const CLI::ParseError& error);

} // namespace weft::recipes::cli
