#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
} // namespace CLI

namespace weft::cli {

/// Describes the error in a command line that `app` refused: the unknown word
/// and a suggestion, or the missing argument.
std::string explain_usage(const CLI::App& app, const CLI::ParseError& error);

/// Returns how many words of `argv` to parse: up to the first word that should
/// name a subcommand and does not, or all. Otherwise a later "--help" would
/// hide the error.
int words_to_parse(CLI::App& app, int argc, const char* const* argv);

} // namespace weft::cli
