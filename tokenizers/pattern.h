#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace weft::recipes {

/// A regular expression as tokenizer.json files write it (Oniguruma's syntax,
/// of which the part is understood that such files use), run by PCRE2.
class Pattern {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  /// Throws: TokenizerError for one that is not understood.
  explicit Pattern(const std::string& expression);
  Pattern(Pattern&&) noexcept;
  ~Pattern();
  /// Matches `text` and nothing else.
  static Pattern literal(std::string_view text);

  /// The first match in valid UTF-8 that begins at `from` or later.
  /// Throws: TokenizerError if the search takes more memory than it may.
  std::optional<Match> find(std::string_view text, size_t from) const;

  /// Calls `visit` with all matches from left to right. An empty match right
  /// after another is none.
  template <class Visit>
  void for_each(std::string_view text, const Visit& visit) const;

 private:
  struct Code;
  explicit Pattern(std::unique_ptr<Code> code);
  static std::unique_ptr<Code> compile(const std::string& translated);

  std::unique_ptr<Code> code_;
};

/// `expression` in PCRE2's syntax: the two differ in what \s, \w, \v and \u are
/// and in which scripts a character has.
/// Throws: TokenizerError for what has no equal there.
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

} // namespace weft::recipes
