#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/json_scan.h"
#include "checkpoint/format/tensor_header.h"

namespace weft::checkpoint {
namespace {

constexpr const char* kShardingInfo = "DCP_SHARDING_INFO";

// Parses {"<name>": {"dtype": ..., "shape": [...], "data_offsets": [...]}, ...}
// and the strings of "__metadata__".
class HeaderScan : public JsonScan {
 public:
  HeaderScan(const std::string& source, TensorHeader& header)
      : JsonScan(source, limits::kHeaderDepth), header_(header) {}

  void on_key(const std::string& name) override {
    if (depth_ == 1) {
      begin_entry(name);
    }
    key_ = name;
  }
  void on_begin(bool is_object) override {
    ++depth_;
    if (depth_ <= 2 && is_object) {
      return;
    }
    if (depth_ != 3 || is_object || in_metadata_) {
      fail(
          is_object ? "an object is not expected here"
                    : "a list is not expected here");
    }
    if (key_ == "shape") {
      numbers_ = &tensor_->shape;
      seen_ |= kShape;
    } else if (key_ == "data_offsets") {
      numbers_ = &offsets_;
      seen_ |= kOffsets;
    } else {
      fail("it is not known");
    }
  }
  void on_end() override {
    --depth_;
    numbers_ = nullptr;
    if (depth_ == 1 && !in_metadata_) {
      end_entry();
    }
  }
  void on_integer(int64_t value) override {
    if (numbers_ == nullptr) {
      fail("a number is not expected here");
    }
    if (numbers_->size() >= static_cast<size_t>(limits::kDims)) {
      fail(fmt::format("more than {} numbers", limits::kDims));
    }
    numbers_->push_back(value);
  }
  void on_string(const std::string& value) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata[key_] = value;
    } else if (depth_ == 2 && key_ == "dtype") {
      const auto dtype = from_format_name(value);
      if (!dtype) {
        fail(fmt::format("unknown dtype {}", in_quotes(value)));
      }
      tensor_->dtype = *dtype;
      seen_ |= kDtype;
    } else {
      fail("a string is not expected here");
    }
  }
  void on_other(const char* what) override {
    fail(fmt::format("{} is not expected here", what));
  }

 private:
  static constexpr int kDtype = 1;
  static constexpr int kShape = 2;
  static constexpr int kOffsets = 4;

  void begin_entry(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    if (in_metadata_) {
      return;
    }
    std::string why;
    if (!is_tensor_name(name, why)) {
      fail(why);
    }
    if (header_.tensors.size() >= static_cast<size_t>(limits::kTensors)) {
      fail(fmt::format("more than {} tensors", limits::kTensors));
    }
    tensor_ = &header_.tensors[name];
    offsets_.clear();
    seen_ = 0;
  }

  void end_entry() {
    if (seen_ != (kDtype | kShape | kOffsets)) {
      fail("the entry of a tensor must have dtype, shape and data_offsets");
    }
    const auto count = element_count(tensor_->shape);
    const auto item = static_cast<int64_t>(c10::elementSize(tensor_->dtype));
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1] || count < 0 ||
        (offsets_[1] - offsets_[0]) / item != count ||
        (offsets_[1] - offsets_[0]) % item != 0) {
      fail(fmt::format(
          "data_offsets {} do not match the size of dtype {} and shape {}",
          to_text(offsets_),
          format_name(tensor_->dtype),
          to_text(tensor_->shape)));
    }
    tensor_->begin = offsets_[0];
    tensor_->end = offsets_[1];
  }

  TensorHeader& header_;
  HeaderTensor* tensor_ = nullptr;
  std::vector<int64_t> offsets_;
  std::vector<int64_t>* numbers_ = nullptr;
  std::string key_;
  int seen_ = 0;
  int depth_ = 0;
  bool in_metadata_ = false;
};

// Parses {"<name>": {"saved_offsets": [...], "global_shape": [...], ...}, ...}.
class ShardingScan : public JsonScan {
 public:
  ShardingScan(const std::string& source, TensorHeader& header)
      : JsonScan(source, limits::kHeaderDepth), header_(header) {}

  void on_key(const std::string& name) override {
    if (depth_ == 1) {
      const auto found = header_.tensors.find(name);
      if (found == header_.tensors.end()) {
        fail("no such tensor in the file");
      }
      tensor_ = &found->second;
    }
    key_ = name;
  }
  void on_begin(bool is_object) override {
    ++depth_;
    numbers_ = nullptr;
    if (depth_ <= 2 && !is_object) {
      fail("a list is not expected here");
    }
    if (depth_ == 3 && key_ == "saved_offsets") {
      numbers_ = is_object ? nullptr : &tensor_->offset.emplace();
    } else if (depth_ == 3 && key_ == "global_shape") {
      numbers_ = is_object ? nullptr : &tensor_->global_shape.emplace();
    }
  }
  void on_end() override {
    --depth_;
    numbers_ = nullptr;
  }
  void on_integer(int64_t value) override {
    if (depth_ < 2) {
      fail("a number is not expected here");
    }
    if (numbers_ == nullptr) {
      return;
    }
    if (numbers_->size() >= tensor_->shape.size()) {
      fail(fmt::format("more than the {} dims", tensor_->shape.size()));
    }
    numbers_->push_back(value);
  }
  void on_string(const std::string& /*value*/) override {
    on_other("a string");
  }
  void on_other(const char* what) override {
    if (depth_ < 2 || numbers_ != nullptr) {
      fail(fmt::format("{} is not expected here", what));
    }
  }

 private:
  TensorHeader& header_;
  HeaderTensor* tensor_ = nullptr;
  std::vector<int64_t>* numbers_ = nullptr;
  std::string key_;
  int depth_ = 0;
};

void check_places(const TensorHeader& header, const std::string& source) {
  for (const auto& [name, tensor] : header.tensors) {
    const auto where = fmt::format("tensor {}", in_quotes(name));
    if (tensor.offset && tensor.offset->size() != tensor.shape.size()) {
      throw_corrupt(
          source,
          fmt::format(
              "{}: saved_offsets {} must have one number per dim of shape {}",
              where,
              to_text(*tensor.offset),
              to_text(tensor.shape)));
    }
    if (!tensor.global_shape) {
      continue;
    }
    const auto& whole = *tensor.global_shape;
    bool inside = tensor.offset && whole.size() == tensor.shape.size() &&
                  element_count(whole) >= 0;
    for (size_t d = 0; inside && d < whole.size(); ++d) {
      inside = tensor.shape[d] <= whole[d] &&
               (*tensor.offset)[d] <= whole[d] - tensor.shape[d];
    }
    if (!inside) {
      throw_corrupt(
          source,
          fmt::format(
              "{}: the piece of shape {} does not fit into global_shape {}",
              where,
              to_text(tensor.shape),
              to_text(whole)));
    }
  }
}

// Checks that the data of the tensors is contiguous and fills the rest of the
// file. Makes the offsets relative to the begin of the file.
void check_layout(
    TensorHeader& header,
    int64_t data_bytes,
    const std::string& source) {
  std::vector<std::pair<const std::string, HeaderTensor>*> order;
  for (auto& entry : header.tensors) {
    order.push_back(&entry);
  }
  std::ranges::sort(order, {}, [](const auto* entry) {
    return std::pair(entry->second.begin, entry->second.end);
  });
  int64_t position = 0;
  for (auto* entry : order) {
    auto& tensor = entry->second;
    if (tensor.begin != position) {
      throw_corrupt(
          source,
          fmt::format(
              "tensor {} begins at byte {} of the data, but byte {} was "
              "expected: there is {}",
              in_quotes(entry->first),
              tensor.begin,
              position,
              tensor.begin < position ? "an overlap" : "a gap"));
    }
    position = tensor.end;
  }
  if (position != data_bytes) {
    throw_corrupt(
        source,
        fmt::format(
            "the header describes {} bytes of data, but the file has {}",
            position,
            data_bytes));
  }
  for (auto* entry : order) {
    entry->second.begin += header.bytes;
    entry->second.end += header.bytes;
  }
}

} // namespace

TensorHeader parse_header(
    std::string_view bytes,
    int64_t file_bytes,
    const std::string& source) {
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    throw_corrupt(source, "byte 0: no header");
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  const auto json = bytes.substr(sizeof(length));
  if (length != json.size() || length > uint64_t{limits::kHeaderBytes} ||
      file_bytes < static_cast<int64_t>(bytes.size())) {
    throw_corrupt(
        source,
        fmt::format(
            "byte 0: the file states a header of {} bytes, but only {} were "
            "read from the file of {} bytes",
            length,
            json.size(),
            file_bytes));
  }
  TensorHeader header;
  header.bytes = static_cast<int64_t>(bytes.size());
  HeaderScan(source, header).run(json);
  if (const auto info = header.metadata.find(kShardingInfo);
      info != header.metadata.end()) {
    ShardingScan(source + ", " + kShardingInfo, header).run(info->second);
    header.metadata.erase(info);
  }
  check_places(header, source);
  check_layout(header, file_bytes - header.bytes, source);
  return header;
}

} // namespace weft::checkpoint
