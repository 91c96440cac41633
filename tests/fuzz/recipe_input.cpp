#include "tests/fuzz/recipe_input.h"

#include <cctype>
#include <stdexcept>

#include "config/recipe.h"
#include "mesh/error/error.h"

namespace weft::test {
namespace {

constexpr std::string_view kFile = "r.yaml:";

/// Takes the number, not 0, and the colon behind it from the front.
bool takes_number(std::string_view& text) {
  size_t digits = 0;
  while (digits < text.size() && std::isdigit(text[digits])) {
    ++digits;
  }
  if (digits == 0 || text[0] == '0' || digits == text.size() ||
      text[digits] != ':') {
    return false;
  }
  text.remove_prefix(digits + 1);
  return true;
}

bool says_where(std::string_view message) {
  if (!message.starts_with(kFile) ||
      message.find('\n') != std::string_view::npos) {
    return false;
  }
  message.remove_prefix(kFile.size());
  return (takes_number(message) && takes_number(message)) ||
         message.ends_with(": is required but missing") ||
         message == " the recipe is empty";
}

config::Recipe parse(std::string_view text) {
  return config::parse_stored_recipe(text, "r.yaml");
}

} // namespace

FuzzVerdict fuzz_recipe(std::string_view input) {
  config::Recipe recipe;
  try {
    recipe = parse(input);
  } catch (const mesh::UsageError& error) {
    const std::string message = error.what_without_backtrace();
    if (!says_where(message)) {
      throw std::logic_error("a refusal that does not say where: " + message);
    }
    return {.is_accepted = false, .error = message};
  }
  if (parse(config::to_yaml(recipe)) != recipe) {
    throw std::logic_error("not the same once it is written and read");
  }
  return {.is_accepted = true, .error = ""};
}

} // namespace weft::test
