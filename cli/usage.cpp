#include "cli/usage.h"

#include <algorithm>
#include <vector>

#include <CLI/CLI.hpp>

#include "config/suggest.h"

namespace weft::cli {
namespace {

// Returns the innermost subcommand of the command line. Appends the words that
// call it to `words`.
const CLI::App& reached(const CLI::App& app, std::string& words) {
  words += words.empty() ? "" : " ";
  words += app.get_name();
  const auto used = app.get_subcommands();
  return used.empty() ? app : reached(*used.front(), words);
}

// Returns "; did you mean train?" if an option or subcommand of `command` has a
// similar name, otherwise an empty string.
std::string suggestion(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  for (const auto* option : command.get_options()) {
    names.push_back(option->get_name());
  }
  for (const auto* subcommand : command.get_subcommands({})) {
    names.push_back(subcommand->get_name());
  }
  const auto nearest = config::nearest_name(word, names);
  return nearest.empty() ? "" : "; did you mean " + nearest + "?";
}

} // namespace

int words_to_parse(CLI::App& app, int argc, const char* const* argv) {
  CLI::App* command = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto known = command->get_subcommands({});
    if (word.starts_with('-') || known.empty()) {
      break;
    }
    const auto found = std::ranges::find(known, word, &CLI::App::get_name);
    if (found == known.end()) {
      return i + 1;
    }
    command = *found;
  }
  return argc;
}

std::string explain_usage(const CLI::App& app, const CLI::ParseError& error) {
  std::string words;
  const auto& command = reached(app, words);
  const auto unknown = command.remaining();
  std::string text = error.what();
  if (!unknown.empty()) {
    const auto word = unknown.front().substr(0, unknown.front().find('='));
    text = "\"" + word + "\" is not known" + suggestion(command, word);
  }
  const bool has_end = text.ends_with('.') || text.ends_with('?');
  return text + (has_end ? " See " : ". See ") + words + " --help.";
}

} // namespace weft::cli
