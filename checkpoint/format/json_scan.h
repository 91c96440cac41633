#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace weft::checkpoint {

/// Goes through a JSON text of unknown origin, event by event, without building
/// a tree: memory stays in proportion to what the derived class keeps. Refuses
/// what the format refuses everywhere: duplicate keys, depth, too many keys,
/// NUL bytes, a byte order mark, invalid UTF-8, anything after the end.
class JsonScan {
 public:
  virtual ~JsonScan() = default;
  JsonScan(const JsonScan&) = delete;
  JsonScan& operator=(const JsonScan&) = delete;

  /// Throws: CheckpointError naming the source, the key and the byte.
  void run(std::string_view text);

  /// Called for whatever run() meets; a value is the one of the last key.
  virtual void on_key(const std::string& name) = 0;
  virtual void on_begin(bool is_object) = 0;
  virtual void on_end() = 0;
  virtual void on_integer(int64_t value) = 0;
  virtual void on_string(const std::string& value) = 0;
  /// A number that is no int64_t of at least 0, true, false or null.
  virtual void on_other(const char* what) = 0;

 protected:
  JsonScan(std::string source, int64_t max_depth)
      : source_(std::move(source)), max_depth_(max_depth) {}

  /// Bytes read so far: right behind the bracket in on_begin() and on_end().
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

/// Checks that `text` is one JSON object of at most `depth` that the format
/// accepts. Throws: CheckpointError as JsonScan.
void check_json_object(
    std::string_view text,
    const std::string& source,
    int64_t depth);

} // namespace weft::checkpoint
