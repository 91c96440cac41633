#include "checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <span>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/store/store.h"
#include "checkpoint/tensors/tensor_file.h"

namespace weft::checkpoint {
namespace {

using Indices = std::vector<int64_t>;
using Json = nlohmann::json;

constexpr int64_t kBlockBytes = 4 << 20;

// Several pieces are cached, because a piece of a tensor that is sharded by
// columns contains rows of many blocks.
constexpr int64_t kCachedPieces = 32;

struct Side {
  Side(const std::filesystem::path& path, std::string_view hmac_key)
      : pin(path),
        manifest(read_manifest(pin.folder(), hmac_key)),
        reader(pin.folder(), manifest, kCachedPieces) {}

  StepPin pin;
  Manifest manifest;
  ChunkReader reader;
};

// Calls `visit` for parts of a box, which are halved along the first dim that
// is larger than 1 until no part is larger than a block.
void for_each_block(
    const Indices& offset,
    const Indices& shape,
    int64_t item,
    const std::function<void(const Indices&, const Indices&)>& visit) {
  const auto longest =
      std::ranges::find_if(shape, [](int64_t size) { return size > 1; });
  if (element_count(shape) * item <= kBlockBytes || longest == shape.end()) {
    visit(offset, shape);
    return;
  }
  const auto d = static_cast<size_t>(longest - shape.begin());
  auto half = shape;
  half[d] = shape[d] / 2;
  for_each_block(offset, half, item, visit);
  auto rest_offset = offset;
  rest_offset[d] += half[d];
  half[d] = shape[d] - half[d];
  for_each_block(rest_offset, half, item, visit);
}

class TensorDifference {
 public:
  explicit TensorDifference(at::ScalarType dtype)
      : dtype_(dtype), item_(c10::elementSize(dtype)) {}

  void add_block(
      const Indices& offset,
      const Indices& shape,
      std::span<std::byte> a,
      std::span<std::byte> b) {
    if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) {
      return;
    }
    const auto gaps = distances(a, b);
    for (size_t i = 0; i < gaps.size(); ++i) {
      if (std::memcmp(&a[i * item_], &b[i * item_], item_) == 0) {
        continue;
      }
      if (elements_++ == 0 || starts_before(offset, shape, i)) {
        first_ = index_at(offset, shape, i);
      }
      max_abs_ = std::isfinite(gaps[i])
                     ? std::max(max_abs_, gaps[i])
                     : std::numeric_limits<double>::infinity();
    }
  }

  bool any() const { return elements_ > 0; }

  Difference take(const std::string& name, const TensorRecord& tensor) {
    return {
        name,
        fmt::format(
            "{} of {} elements differ, by at most {:g}, first at {}",
            elements_,
            element_count(tensor.shape),
            max_abs_,
            to_text(first_)),
        elements_,
        max_abs_,
        first_};
  }

 private:
  static Indices
  index_at(const Indices& offset, const Indices& shape, size_t flat) {
    auto index = offset;
    auto left = static_cast<int64_t>(flat);
    for (auto d = shape.size(); d-- > 0;) {
      index[d] += left % shape[d];
      left /= shape[d];
    }
    return index;
  }

  // Returns true if the element precedes `first_`. Blocks arrive chunk by
  // chunk, which need not be row-major order.
  bool starts_before(const Indices& offset, const Indices& shape, size_t flat)
      const {
    return offset < first_ && index_at(offset, shape, flat) < first_;
  }

  std::vector<double> distances(std::span<std::byte> a, std::span<std::byte> b)
      const {
    const auto count = static_cast<int64_t>(a.size() / item_);
    const auto load = [&](std::span<std::byte> bytes) {
      const auto tensor = at::from_blob(bytes.data(), {count}, dtype_);
      return tensor.to(tensor.is_complex() ? at::kComplexDouble : at::kDouble);
    };
    const auto gap = (load(a) - load(b)).abs();
    const auto* data = gap.const_data_ptr<double>();
    return {data, data + count};
  }

  at::ScalarType dtype_;
  size_t item_;
  int64_t elements_ = 0;
  double max_abs_ = 0;
  Indices first_;
};

class Comparer {
 public:
  Comparer(
      const std::filesystem::path& a,
      const std::filesystem::path& b,
      std::string_view hmac_key,
      const Progress& progress)
      : a_(a, hmac_key), b_(b, hmac_key), progress_(progress) {
    for (const auto& [name, tensor] : a_.manifest.tensors) {
      total_ += bytes_of(tensor);
    }
  }

  Comparison run() {
    if (a_.manifest.step != b_.manifest.step) {
      add("step", fmt::format("{} vs {}", a_.manifest.step, b_.manifest.step));
    }
    compare_json(
        "state",
        base::parse_json<Json>(a_.manifest.state),
        base::parse_json<Json>(b_.manifest.state));
    for (const auto& [name, tensor] : a_.manifest.tensors) {
      const auto other = b_.manifest.tensors.find(name);
      if (other == b_.manifest.tensors.end()) {
        add(name, "only in A");
      } else {
        compare_tensor(name, tensor, other->second);
      }
      before_ += bytes_of(tensor);
      tell(name, before_);
    }
    for (const auto& [name, tensor] : b_.manifest.tensors) {
      if (!a_.manifest.tensors.contains(name)) {
        add(name, "only in B");
      }
    }
    std::ranges::stable_sort(result_.differences, {}, &Difference::name);
    return std::move(result_);
  }

 private:
  static int64_t bytes_of(const TensorRecord& tensor) {
    return element_count(tensor.shape) *
           static_cast<int64_t>(c10::elementSize(tensor.dtype));
  }

  void tell(const std::string& name, int64_t done) const {
    if (progress_) {
      progress_(done, total_, name);
    }
  }

  void add(const std::string& name, const std::string& what) {
    result_.differences.push_back({name, what, 0, 0, {}});
  }

  void compare_json(const std::string& name, const Json& a, const Json& b) {
    if (a.is_object() && b.is_object()) {
      std::set<std::string> keys;
      for (const auto& [key, value] : a.items()) {
        keys.insert(key);
      }
      for (const auto& [key, value] : b.items()) {
        keys.insert(key);
      }
      for (const auto& key : keys) {
        const auto member = fmt::format("{}.{}", name, key);
        if (!a.contains(key) || !b.contains(key)) {
          add(member, a.contains(key) ? "only in A" : "only in B");
        } else {
          compare_json(member, a.at(key), b.at(key));
        }
      }
    } else if (a.is_array() && b.is_array() && a.size() == b.size()) {
      for (size_t i = 0; i < a.size(); ++i) {
        compare_json(fmt::format("{}[{}]", name, i), a[i], b[i]);
      }
    } else if (base::json_text(a) != base::json_text(b)) {
      add(name, fmt::format("{} vs {}", shortened(a), shortened(b)));
    }
  }

  static std::string shortened(const Json& value) {
    constexpr size_t kMax = 60;
    const auto text = base::json_text(value);
    return text.size() <= kMax ? text : text.substr(0, kMax) + "...";
  }

  void compare_tensor(
      const std::string& name,
      const TensorRecord& a,
      const TensorRecord& b) {
    if (a.dtype != b.dtype || a.shape != b.shape) {
      add(name,
          fmt::format(
              "{} {} vs {} {}",
              plain_name(a.dtype),
              to_text(a.shape),
              plain_name(b.dtype),
              to_text(b.shape)));
      return;
    }
    TensorDifference difference(a.dtype);
    int64_t in_tensor = 0;
    const auto item = static_cast<int64_t>(c10::elementSize(a.dtype));
    for (const auto& chunk : a.chunks) {
      for_each_block(
          chunk.offset,
          chunk.shape,
          item,
          [&](const Indices& offset, const Indices& shape) {
            const auto size = static_cast<size_t>(element_count(shape) * item);
            buffer_a_.resize(size);
            buffer_b_.resize(size);
            a_.reader.read_box(name, offset, shape, buffer_a_);
            b_.reader.read_box(name, offset, shape, buffer_b_);
            difference.add_block(offset, shape, buffer_a_, buffer_b_);
            result_.bytes += static_cast<int64_t>(size);
            in_tensor += static_cast<int64_t>(size);
            tell(name, before_ + in_tensor);
          });
    }
    ++result_.tensors;
    if (difference.any()) {
      result_.differences.push_back(difference.take(name, a));
    }
  }

  Side a_;
  Side b_;
  const Progress& progress_;
  // The bytes of all tensors of A, and of those that are already compared.
  int64_t total_ = 0;
  int64_t before_ = 0;
  std::vector<std::byte> buffer_a_;
  std::vector<std::byte> buffer_b_;
  Comparison result_;
};

} // namespace

Comparison compare(
    const std::filesystem::path& a,
    const std::filesystem::path& b,
    std::string_view hmac_key,
    const Progress& progress) {
  return Comparer(a, b, hmac_key, progress).run();
}

} // namespace weft::checkpoint
