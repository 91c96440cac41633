#include "checkpoint/format/weight_index.h"

#include <fmt/format.h>

#include "checkpoint/files/folder.h"
#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/json_scan.h"

namespace weft::checkpoint {
namespace {

class IndexScan : public JsonScan {
 public:
  explicit IndexScan(const std::string& source)
      : JsonScan(source, /*max_depth=*/8) {}

  void on_key(const std::string& name) override {
    if (depth_ == 1) {
      in_map_ = name == "weight_map";
      has_map_ = has_map_ || in_map_;
    }
    key_ = name;
  }
  void on_begin(bool is_object) override {
    ++depth_;
    if (in_map_ && (depth_ != 2 || !is_object)) {
      fail("expected a file name");
    }
  }
  void on_end() override { --depth_; }
  void on_integer(int64_t /*value*/) override { on_other("a number"); }
  void on_string(const std::string& value) override {
    if (!in_map_) {
      return;
    }
    if (depth_ != 2) {
      fail("expected a map");
    }
    if (!is_plain_file_name(value)) {
      fail(fmt::format(
          "got file name {}, expected the plain name of a file in the same "
          "folder",
          in_quotes(value)));
    }
    if (files.size() >= static_cast<size_t>(limits::kTensors)) {
      fail(fmt::format("more than {} tensors", limits::kTensors));
    }
    files.emplace(key_, value);
  }
  void on_other(const char* what) override {
    if (in_map_) {
      fail(fmt::format("{} is not expected here", what));
    }
  }
  bool has_map() const { return has_map_; }

  std::map<std::string, std::string> files;

 private:
  std::string key_;
  int depth_ = 0;
  bool in_map_ = false;
  bool has_map_ = false;
};

} // namespace

std::map<std::string, std::string> parse_weight_index(
    std::string_view text,
    const std::string& source) {
  IndexScan scan(source);
  scan.run(text);
  if (!scan.has_map()) {
    throw_corrupt(source, "there is no weight_map");
  }
  return std::move(scan.files);
}

} // namespace weft::checkpoint
