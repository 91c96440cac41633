#include "checkpoint/format/json_scan.h"

#include <iterator>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"

namespace weft::checkpoint {
namespace {

// An iterator that counts the characters that the parser has read. The parser
// reads one character at a time, and reports a bracket before it reads beyond
// it.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at = nullptr;
  int64_t* count = nullptr;

  reference operator*() const { return *at; }
  CountingIterator& operator++() {
    ++at;
    ++*count;
    return *this;
  }
  CountingIterator operator++(int) {
    auto before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const {
    return at == other.at;
  }
};

class NoEvents : public JsonScan {
 public:
  NoEvents(std::string source, int64_t depth)
      : JsonScan(std::move(source), depth) {}
  void on_key(const std::string& /*name*/) override {}
  void on_begin(bool /*is_object*/) override {}
  void on_end() override {}
  void on_integer(int64_t /*value*/) override {}
  void on_string(const std::string& /*value*/) override {}
  void on_other(const char* /*what*/) override {}
};

} // namespace

// The event handler for nlohmann::json::sax_parse.
struct JsonScan::Adapter {
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  JsonScan& scan;

  bool null() {
    scan.on_other("null");
    return true;
  }
  bool boolean(bool value) {
    scan.on_other(value ? "true" : "false");
    return true;
  }
  bool number_integer(number_integer_t /*value*/) {
    scan.on_other("a negative number");
    return true;
  }
  bool number_unsigned(number_unsigned_t value) {
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) {
      scan.on_other("a number of 2^63 or more");
    } else {
      scan.on_integer(static_cast<int64_t>(value));
    }
    return true;
  }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) {
    scan.on_other("a number that is not an integer");
    return true;
  }
  bool string(string_t& value) {
    scan.on_string(value);
    return true;
  }
  bool binary(binary_t& /*value*/) { return true; }
  bool start_object(size_t /*elements*/) {
    scan.begin(true);
    return true;
  }
  bool start_array(size_t /*elements*/) {
    scan.begin(false);
    return true;
  }
  bool end_object() {
    scan.end();
    return true;
  }
  bool end_array() {
    scan.end();
    return true;
  }
  bool key(string_t& name) {
    scan.key(name);
    return true;
  }
  template <class Error>
  bool parse_error(size_t /*at*/, const std::string& /*token*/, const Error&) {
    return false; // run() throws with the position.
  }
};

void JsonScan::run(std::string_view text) {
  position_ = 0;
  frames_.clear();
  open_keys_ = 0;
  // nlohmann's parser would treat a NUL as the end of the text, and would skip
  // a byte order mark.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    position_ = static_cast<int64_t>(nul);
    fail("a NUL byte");
  }
  if (!text.starts_with('{')) {
    fail("it does not begin with {");
  }
  Adapter adapter{*this};
  const CountingIterator begin{text.data(), &position_};
  const CountingIterator end{text.data() + text.size(), &position_};
  if (!nlohmann::json::sax_parse(begin, end, &adapter)) {
    fail("not JSON");
  }
}

void JsonScan::begin(bool is_object) {
  if (static_cast<int64_t>(frames_.size()) >= max_depth_) {
    fail(fmt::format("nested deeper than {}", max_depth_));
  }
  on_begin(is_object);
  frames_.push_back({is_object, {}, {}});
}

void JsonScan::end() {
  open_keys_ -= frames_.back().keys.size();
  frames_.pop_back();
  on_end();
}

void JsonScan::key(const std::string& name) {
  auto& frame = frames_.back();
  frame.key = name;
  // The limit bounds the memory: a stored short key takes ten times the size of
  // its text.
  if (++open_keys_ > static_cast<size_t>(limits::kOpenKeys)) {
    fail(fmt::format("more than {} keys", limits::kOpenKeys));
  }
  if (!frame.keys.insert(name).second) {
    fail("the key is repeated");
  }
  on_key(name);
}

std::string JsonScan::where() const {
  std::string path;
  for (const auto& frame : frames_) {
    if (frame.is_object && !frame.key.empty()) {
      path += path.empty() ? "" : ", ";
      path += in_quotes(frame.key);
    }
  }
  return path;
}

void JsonScan::fail(const std::string& what) const {
  const auto path = where();
  throw_corrupt(
      source_,
      fmt::format(
          "{}{}byte {}: {}", path, path.empty() ? "" : ", ", position_, what));
}

void check_json_object(
    std::string_view text,
    const std::string& source,
    int64_t depth) {
  NoEvents(source, depth).run(text);
}

} // namespace weft::checkpoint
