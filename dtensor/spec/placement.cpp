#include "dtensor/spec/placement.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

constexpr std::array<std::string_view, 5> kReduceOpNames{
    "sum",
    "avg",
    "min",
    "max",
    "product"};

[[noreturn]] void refuse(std::string_view text) {
  mesh::throw_error<c10::ValueError>(
      "[placement] '" + std::string(text) +
      "' is not a placement. Write S(<dim>), S(<dim>, [<rows>, ...]), "
      "_S(<dim>, <split factor>), R or P(sum|avg|min|max|product).");
}

// Reads "3", "0, 2" and "[1, 2]" from the front of a placement's inner text.
class NumberReader {
 public:
  NumberReader(std::string_view whole, std::string_view inner)
      : whole_(whole), rest_(inner) {}

  int64_t number() {
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) {
      refuse(whole_);
    }
    rest_.remove_prefix(end - rest_.data());
    return value;
  }

  /// Consumes `c` if it is next, and the spaces after a comma. Returns true if
  /// it was next.
  bool take(char c) {
    if (!rest_.starts_with(c)) {
      return false;
    }
    rest_.remove_prefix(1);
    while (c == ',' && rest_.starts_with(' ')) {
      rest_.remove_prefix(1);
    }
    return true;
  }

  void expect(char c) {
    if (!take(c)) {
      refuse(whole_);
    }
  }

  void expect_end() const {
    if (!rest_.empty()) {
      refuse(whole_);
    }
  }

 private:
  std::string_view whole_;
  std::string_view rest_;
};

Placement parse_shard(std::string_view whole, std::string_view inner) {
  NumberReader reader(whole, inner);
  const int64_t dim = reader.number();
  if (!reader.take(',')) {
    reader.expect_end();
    return Shard(dim);
  }
  reader.expect('[');
  std::vector<int64_t> sizes{reader.number()};
  while (reader.take(',')) {
    sizes.push_back(reader.number());
  }
  reader.expect(']');
  reader.expect_end();
  return Shard(dim, std::move(sizes));
}

Placement parse_strided(std::string_view whole, std::string_view inner) {
  NumberReader reader(whole, inner);
  const int64_t dim = reader.number();
  reader.expect(',');
  const int64_t split_factor = reader.number();
  reader.expect_end();
  return StridedShard(dim, split_factor);
}

// Refuses dims far beyond those of any tensor, so that a dim fits into int32_t
// and into its 24 bits of code().
void check_dim(int64_t tensor_dim) {
  constexpr int64_t kMax = 1 << 20;
  if (tensor_dim < -kMax || tensor_dim > kMax) {
    mesh::throw_error<c10::ValueError>(
        "[placement] got an out-of-range tensor dim " +
        std::to_string(tensor_dim) + ".");
  }
}

} // namespace

Placement Shard(int64_t tensor_dim) {
  check_dim(tensor_dim);
  return {Placement::Kind::kShard, ReduceOp::kSum, tensor_dim};
}

Placement Shard(int64_t tensor_dim, std::vector<int64_t> sizes) {
  if (sizes.empty() ||
      std::ranges::any_of(sizes, [](int64_t rows) { return rows < 0; })) {
    mesh::throw_error<c10::ValueError>(
        "[placement] the rows of S(" + std::to_string(tensor_dim) +
        ") must be one non-negative number per rank.");
  }
  auto placement = Shard(tensor_dim);
  placement.sizes_ =
      std::make_shared<const std::vector<int64_t>>(std::move(sizes));
  return placement;
}

Placement StridedShard(int64_t tensor_dim, int64_t split_factor) {
  check_dim(tensor_dim);
  if (split_factor < 1 || split_factor > std::numeric_limits<int32_t>::max()) {
    mesh::throw_error<c10::ValueError>(
        "[placement] expected a split factor from 1 to 2^31 - 1, got _S(" +
        std::to_string(tensor_dim) + ", " + std::to_string(split_factor) +
        ").");
  }
  Placement placement{
      Placement::Kind::kStridedShard, ReduceOp::kSum, tensor_dim};
  placement.split_factor_ = static_cast<int32_t>(split_factor);
  return placement;
}

Placement Replicate() {
  return {};
}

Placement Partial(ReduceOp op) {
  return {Placement::Kind::kPartial, op, 0};
}

bool Placement::operator==(const Placement& other) const {
  return kind_ == other.kind_ && op_ == other.op_ &&
         tensor_dim_ == other.tensor_dim_ &&
         split_factor_ == other.split_factor_ &&
         (sizes_ == other.sizes_ || shard_sizes() == other.shard_sizes());
}

const std::vector<int64_t>& Placement::shard_sizes() const {
  static const std::vector<int64_t> none;
  return sizes_ ? *sizes_ : none;
}

Placement Placement::with_tensor_dim(int64_t tensor_dim) const {
  Placement other = *this;
  other.tensor_dim_ = static_cast<int32_t>(tensor_dim);
  return other;
}

Placement Placement::normalized(int64_t ndim) const {
  if (!is_shard()) {
    return *this;
  }
  const int64_t dim = tensor_dim_ < 0 ? tensor_dim_ + ndim : tensor_dim_;
  if (dim < 0 || dim >= ndim) {
    mesh::throw_error<c10::ValueError>(
        "[placement] " + to_string() + " shards a dim that a tensor of " +
        std::to_string(ndim) + " dims does not have.");
  }
  return with_tensor_dim(dim);
}

std::string Placement::to_string() const {
  const auto dim = std::to_string(tensor_dim_);
  switch (kind_) {
    case Kind::kShard: {
      std::string sizes;
      for (const int64_t rows : shard_sizes()) {
        sizes += (sizes.empty() ? ", [" : ", ") + std::to_string(rows);
      }
      return "S(" + dim + sizes + (sizes.empty() ? ")" : "])");
    }
    case Kind::kStridedShard:
      return "_S(" + dim + ", " + std::to_string(split_factor_) + ")";
    case Kind::kPartial:
      return "P(" + std::string(dtensor::to_string(op_)) + ")";
    case Kind::kReplicate:
      break;
  }
  return "R";
}

Placement Placement::parse(std::string_view text) {
  const auto inner = [&](std::string_view front) {
    return text.substr(front.size(), text.size() - front.size() - 1);
  };
  if (text == "R") {
    return Replicate();
  }
  if (!text.ends_with(')')) {
    refuse(text);
  }
  if (text.starts_with("S(")) {
    return parse_shard(text, inner("S("));
  }
  if (text.starts_with("_S(")) {
    return parse_strided(text, inner("_S("));
  }
  if (text.starts_with("P(")) {
    const auto op = std::ranges::find(kReduceOpNames, inner("P("));
    if (op != kReduceOpNames.end()) {
      return Partial(static_cast<ReduceOp>(op - kReduceOpNames.begin()));
    }
  }
  refuse(text);
}

int64_t Placement::code() const {
  auto code = (static_cast<uint64_t>(kind_) << 60) |
              (static_cast<uint64_t>(op_) << 56) |
              (static_cast<uint64_t>(split_factor_ - 1) << 24) |
              (static_cast<uint64_t>(tensor_dim_) & 0xffffff);
  for (const int64_t rows : shard_sizes()) {
    code = (code ^ static_cast<uint64_t>(rows + 1)) * 0x100000001b3ULL;
  }
  return static_cast<int64_t>(code);
}

std::string to_string(const Placements& placements) {
  std::string text = "[";
  for (size_t i = 0; i < placements.size(); ++i) {
    text += (i ? ", " : "") + placements[i].to_string();
  }
  return text + "]";
}

std::string_view to_string(ReduceOp op) {
  return kReduceOpNames.at(static_cast<size_t>(op));
}

} // namespace weft::dtensor
