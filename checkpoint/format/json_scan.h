#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace weft::checkpoint {

/// Parses untrusted JSON as a sequence of events, without building a tree:
/// memory use is proportional to what the derived class keeps. Rejects what the
/// format forbids everywhere: duplicate keys, excessive depth, too many keys,
/// NUL bytes, a byte order mark, invalid UTF-8, and text after the end.
class JsonScan {
 public:
  virtual ~JsonScan() = default;
  JsonScan(const JsonScan&) = delete;
  JsonScan& operator=(const JsonScan&) = delete;

  /// Parses `text`.
  /// Throws: CheckpointError naming the source, the key and the byte if `text`
  /// is invalid.
  void run(std::string_view text);

  /// Called by run() for each event. A value belongs to the last key.
  virtual void on_key(const std::string& name) = 0;
  virtual void on_begin(bool is_object) = 0;
  virtual void on_end() = 0;
  virtual void on_integer(int64_t value) = 0;
  virtual void on_string(const std::string& value) = 0;
  /// Called for true, false, null and a number that is not an int64_t of at
  /// least 0.
  virtual void on_other(const char* what) = 0;

 protected:
  JsonScan(std::string source, int64_t max_depth)
      : source_(std::move(source)), max_depth_(max_depth) {}

  /// Returns the number of bytes read. In on_begin() and on_end() this is the
  /// position directly after the bracket.
  int64_t position() const { return position_; }
  /// Throws: CheckpointError "[checkpoint] <source>: <key> (byte n): <what>".
  [[noreturn]] void fail(const std::string& what) const;

 private:
  struct Adapter;
  struct Frame {
    bool is_object;
    std::unordered_set<std::string> keys;
    std::string key;
  };

  void begin(bool is_object);
  void end();
  void key(const std::string& name);
  std::string where() const;

  std::string source_;
  int64_t max_depth_;
  int64_t position_ = 0;
  size_t open_keys_ = 0;
  std::vector<Frame> frames_;
};

/// Checks that `text` is one JSON object of at most `depth` levels that the
/// format accepts.
/// Throws: CheckpointError like JsonScan.
void check_json_object(
    std::string_view text,
    const std::string& source,
    int64_t depth);

} // namespace weft::checkpoint
