#include "dtensor/placement.h"

#include <array>
#include <charconv>

#include "mesh/error.h"

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
      "' is no placement. Write S(<dim>), R or P(sum|avg|min|max|product).");
}

} // namespace

Placement Shard(int64_t tensor_dim) {
  return {Placement::Kind::kShard, ReduceOp::kSum, tensor_dim};
}

Placement Replicate() {
  return {};
}

Placement Partial(ReduceOp op) {
  return {Placement::Kind::kPartial, op, 0};
}

Placement Placement::normalized(int64_t ndim) const {
  if (!is_shard()) {
    return *this;
  }
  const int64_t dim = tensor_dim_ < 0 ? tensor_dim_ + ndim : tensor_dim_;
  if (dim < 0 || dim >= ndim) {
    mesh::throw_error<c10::ValueError>(
        "[placement] " + to_string() + " cuts a dim that a tensor of " +
        std::to_string(ndim) + " dims does not have.");
  }
  return Shard(dim);
}

std::string Placement::to_string() const {
  switch (kind_) {
    case Kind::kShard:
      return "S(" + std::to_string(tensor_dim_) + ")";
    case Kind::kPartial:
      return "P(" + std::string(dtensor::to_string(op_)) + ")";
    case Kind::kReplicate:
      break;
  }
  return "R";
}

Placement Placement::parse(std::string_view text) {
  if (text == "R") {
    return Replicate();
  }
  if (text.size() < 4 || text[1] != '(' || text.back() != ')') {
    refuse(text);
  }
  const std::string_view inner = text.substr(2, text.size() - 3);
  if (text[0] == 'S') {
    int64_t dim = 0;
    const auto [end, error] =
        std::from_chars(inner.data(), inner.data() + inner.size(), dim);
    if (error != std::errc() || end != inner.data() + inner.size()) {
      refuse(text);
    }
    return Shard(dim);
  }
  if (text[0] == 'P') {
    for (size_t i = 0; i < kReduceOpNames.size(); ++i) {
      if (inner == kReduceOpNames[i]) {
        return Partial(static_cast<ReduceOp>(i));
      }
    }
  }
  refuse(text);
}

int64_t Placement::code() const {
  return (static_cast<int64_t>(kind_) << 40) |
         (static_cast<int64_t>(op_) << 32) | static_cast<uint32_t>(tensor_dim_);
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
