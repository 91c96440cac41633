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

/// How many of `argv` to parse: up to the first word that should name a
/// subcommand and does not, or all. Else "--help" behind it would hide it.
int words_to_parse(CLI::App& app, int argc, const char* const* argv);

} // namespace weft::recipes::cli
