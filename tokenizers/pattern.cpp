#include "tokenizers/pattern.h"

#include <array>
#include <utility>

#include <fmt/format.h>
#include <pcre2.h>

#include "tokenizers/tokenizer.h"
#include "tokenizers/utf8.h"

namespace weft::tokenizers {
namespace {

[[noreturn]] void refuse_pattern(
    const std::string& expression,
    const std::string& reason) {
  mesh::throw_error<TokenizerError>(
      fmt::format("pattern `{}`: {}", expression, reason));
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

pcre2_code*
compile_pcre2(const std::string& translated, int& error, size_t& offset) {
  // PCRE2_MULTILINE matches Ruby's syntax, which the files use: ^ and $ are the
  // ends of lines.
  return pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()),
      translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
      &error,
      &offset,
      nullptr);
}

bool is_script(const std::string& name) {
  int error = 0;
  size_t offset = 0;
  pcre2_code* code = compile_pcre2("\\p{sc:" + name + "}", error, offset);
  pcre2_code_free(code);
  return code != nullptr;
}

// Note [Two regular expression libraries]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The files are written for Oniguruma. PCRE2 has the same matches after these
// are rewritten:
//   \s is Unicode's White_Space. PCRE2's also has U+180E.
//   \w is alphabetic characters, marks, decimal digits and connectors, and
//      outside of a class the superscripts and fractions of Latin-1. PCRE2's
//      has no marks and all numbers.
//   \v is one character in Oniguruma and several in PCRE2. \u is PCRE2's \x{}.
//   \p{Han} has the characters whose own script is Han. PCRE2's has all
//      characters that Han text uses.
// The other expressions (\h, \R, \X, \b, \G, \K, set operations in classes,
// ...) have another meaning or none in PCRE2 and are refused. Each library
// knows the characters of one version of Unicode; PCRE2 10.42 those of version
// 14.
class Translator {
 public:
  explicit Translator(const std::string& expression) : in_(expression) {}

  std::string run() {
    while (at_ < in_.size()) {
      if (in_[at_] == '\\') {
        escape();
      } else if (in_class_) {
        class_character();
      } else {
        character();
      }
    }
    if (in_class_) {
      refuse_pattern(in_, "a character class is not closed");
    }
    return std::move(out_);
  }

 private:
  static constexpr const char* kWordCharacters =
      "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

  static std::string word(std::string_view bracket) {
    return fmt::format(
        "{}{}\\xb2\\xb3\\xb9\\xbc-\\xbe]", bracket, kWordCharacters);
  }

  char peek(size_t ahead) const {
    return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0';
  }

  void character() {
    if (in_[at_] == '[') {
      in_class_ = true;
      take(peek(1) == '^' ? 2 : 1);
      if (peek(0) == ']') {
        refuse_pattern(in_, "an empty character class");
      }
      return;
    }
    if (in_[at_] == '(' && peek(1) == '?') {
      group();
    }
    // In Ruby's syntax, `+` behind an interval repeats the interval.
    if (in_[at_] == '}' && peek(1) == '+') {
      refuse_pattern(in_, "`}+` is not supported");
    }
    take(1);
  }

  void group() {
    const char kind = peek(2);
    const bool behind = kind == '<' && (peek(3) == '=' || peek(3) == '!');
    if (kind == ':' || kind == '=' || kind == '!' || kind == '>' || behind ||
        (kind == 'i' && peek(3) == ':') ||
        // (?i) is supported only at the start, where its scope is clear.
        (kind == 'i' && peek(3) == ')' && at_ == 0) ||
        (kind == '-' && peek(3) == 'i' && peek(4) == ':')) {
      return;
    }
    refuse_pattern(
        in_,
        fmt::format("the group `{}` is not supported", in_.substr(at_, 4)));
  }

  void class_character() {
    if (in_[at_] == ']') {
      in_class_ = false;
    } else if (in_[at_] == '[') {
      refuse_pattern(in_, "`[` inside of a character class is not supported");
    } else if (in_[at_] == '&' && peek(1) == '&') {
      refuse_pattern(in_, "`&&` inside of a character class is not supported");
    }
    take(1);
  }

  void escape() {
    const char kind = peek(1);
    switch (kind) {
      case 's':
        return put("\\p{White_Space}", 2);
      case 'S':
        return put("\\P{White_Space}", 2);
      case 'w':
        return put(in_class_ ? kWordCharacters : word("["), 2);
      case 'W':
        if (!in_class_) {
          return put(word("[^"), 2);
        }
        break;
      case 'v':
        return put("\\x0b", 2);
      case 'p':
      case 'P':
        return property();
      case 'u':
      case 'x':
        return code_point();
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        return take(2);
      default:
        break;
    }
    const bool is_word = (kind >= '0' && kind <= '9') ||
                         (kind >= 'a' && kind <= 'z') ||
                         (kind >= 'A' && kind <= 'Z');
    if (kind == '\0' || is_word) {
      refuse_pattern(
          in_,
          fmt::format(
              "`\\{}`{} is not supported",
              kind == '\0' ? ' ' : kind,
              in_class_ ? " inside of a character class" : ""));
    }
    take(static_cast<unsigned char>(kind) < 0x80 ? 2 : 1);
  }

  void property() {
    const size_t close = in_.find('}', at_);
    if (peek(2) != '{' || close == std::string::npos) {
      refuse_pattern(in_, "a property is written \\p{..}");
    }
    std::string name = in_.substr(at_ + 3, close - at_ - 3);
    bool negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.erase(0, 1);
    }
    const bool is_category = name.size() <= 2;
    put(fmt::format(
            "\\{}{{{}{}}}",
            negated ? 'P' : 'p',
            !is_category && is_script(name) ? "sc:" : "",
            name),
        close + 1 - at_);
  }

  static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ||
           (c >= 'A' && c <= 'F');
  }

  void code_point() {
    const bool is_braced = peek(1) == 'x' && peek(2) == '{';
    const size_t begin = is_braced ? 3 : 2;
    const size_t most = is_braced ? 8 : peek(1) == 'u' ? 4 : 2;
    size_t count = 0;
    while (count < most && is_hex(peek(begin + count))) {
      ++count;
    }
    const bool is_whole =
        is_braced ? count > 0 && peek(begin + count) == '}' : count == most;
    if (!is_whole) {
      refuse_pattern(
          in_, "a character code must have the form \\xHH, \\x{H} or \\uHHHH");
    }
    const std::string digits = in_.substr(at_ + begin, count);
    if (!is_braced && most == 2 && std::stoi(digits, nullptr, 16) > 0x7f) {
      refuse_pattern(
          in_, "\\x above 7f denotes a byte, not a character; use \\u instead");
    }
    put("\\x{" + digits + "}", begin + count + (is_braced ? 1 : 0));
  }

  void take(size_t count) { put(in_.substr(at_, count), count); }

  void put(const std::string& text, size_t consumed) {
    out_ += text;
    at_ += consumed;
  }

  const std::string& in_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

} // namespace

std::string translate_pattern(const std::string& expression) {
  return Translator(expression).run();
}

struct Pattern::Code {
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  ~Code() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
    pcre2_code_free(code);
  }

  std::string text;
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  bool is_jit = false;
};

Pattern::Pattern(const std::string& expression)
    : code_(compile(translate_pattern(expression))) {}

Pattern::Pattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}

Pattern::Pattern(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Pattern Pattern::literal(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') ||
                          static_cast<unsigned char>(c) >= 0x80;
    escaped += is_plain ? std::string(1, c)
                        : fmt::format("\\x{{{:x}}}", static_cast<int>(c));
  }
  return Pattern(compile(escaped));
}

std::unique_ptr<Pattern::Code> Pattern::compile(const std::string& translated) {
  auto code = std::make_unique<Code>();
  code->text = translated;
  int error = 0;
  size_t offset = 0;
  code->code = compile_pcre2(translated, error, offset);
  if (code->code == nullptr) {
    refuse_pattern(
        translated,
        fmt::format("{} at offset {}", pcre2_message(error), offset));
  }
  constexpr size_t kFirstStack = size_t{32} * 1024;
  constexpr size_t kMaxStack = size_t{64} * 1024 * 1024;
  code->is_jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  code->match = pcre2_match_data_create(1, nullptr);
  code->context = pcre2_match_context_create(nullptr);
  code->stack = pcre2_jit_stack_create(kFirstStack, kMaxStack, nullptr);
  pcre2_jit_stack_assign(code->context, nullptr, code->stack);
  return code;
}

std::optional<Pattern::Match> Pattern::find(std::string_view text, size_t from)
    const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  // The text is known to be UTF-8, so neither function checks it.
  const int found = code_->is_jit ? pcre2_jit_match(
                                        code_->code,
                                        subject,
                                        text.size(),
                                        from,
                                        0,
                                        code_->match,
                                        code_->context)
                                  : pcre2_match(
                                        code_->code,
                                        subject,
                                        text.size(),
                                        from,
                                        PCRE2_NO_UTF_CHECK,
                                        code_->match,
                                        code_->context);
  if (found == PCRE2_ERROR_NOMATCH) {
    return std::nullopt;
  }
  if (found < 0) {
    refuse_pattern(
        code_->text,
        fmt::format("{} at byte {} of the text", pcre2_message(found), from));
  }
  const size_t* ends = pcre2_get_ovector_pointer(code_->match);
  return Match{.begin = ends[0], .end = ends[1]};
}

namespace detail {
size_t next_character(std::string_view text, size_t offset) {
  return offset + utf8_length(text[offset]);
}
} // namespace detail

} // namespace weft::tokenizers
