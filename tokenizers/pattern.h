#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace weft::tokenizers {

/// A regular expression of a tokenizer.json, run by PCRE2. The syntax is
/// Oniguruma's, restricted to the part that such files use.
class Pattern {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  /// Throws: TokenizerError if the expression is not supported.
  explicit Pattern(const std::string& expression);
  Pattern(Pattern&&) noexcept;
  ~Pattern();
  /// Returns a pattern that matches exactly `text`.
  static Pattern literal(std::string_view text);

  /// Returns the first match that begins at `from` or later. The text must be
  /// valid UTF-8.
  /// Throws: TokenizerError if the search exceeds its memory limit.
  std::optional<Match> find(std::string_view text, size_t from) const;

  /// Calls `visit` with all matches from left to right. An empty match directly
  /// after another match is skipped.
  template <class Visit>
  void for_each(std::string_view text, const Visit& visit) const;

 private:
  struct Code;
  explicit Pattern(std::unique_ptr<Code> code);
  static std::unique_ptr<Code> compile(const std::string& translated);

  std::unique_ptr<Code> code_;
};

/// Returns `expression` in PCRE2's syntax. The two differ in the meaning of \s,
/// \w, \v and \u and in the scripts of a character.
/// Throws: TokenizerError if PCRE2 has no equivalent.
std::string translate_pattern(const std::string& expression);

namespace detail {
size_t next_character(std::string_view text, size_t offset);
} // namespace detail

template <class Visit>
void Pattern::for_each(std::string_view text, const Visit& visit) const {
  std::optional<size_t> last_end;
  size_t from = 0;
  while (const auto match = find(text, from)) {
    if (match->begin == match->end && last_end == match->end) {
      if (from >= text.size()) {
        return;
      }
      from = detail::next_character(text, from);
      continue;
    }
    visit(*match);
    from = match->end;
    last_end = match->end;
  }
}

} // namespace weft::tokenizers
