#include "mesh/rank_tree.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

at::Tensor bytes_of(std::string_view text) {
  auto tensor = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), text.data(), text.size());
  return tensor;
}

std::string text_of(const at::Tensor& bytes) {
  return {
      static_cast<const char*>(bytes.const_data_ptr()),
      static_cast<size_t>(bytes.numel())};
}

at::Tensor number(int64_t value) {
  return at::full({1}, value, at::kLong);
}

// Returns the texts of all members, joined in rank order, on group rank 0 and
// "" on the other ranks.
std::string gather_joined(
    Communicator& group,
    std::string_view text,
    std::string_view what) {
  const auto sizes = at::empty({group.size()}, at::kLong);
  group.all_gather(sizes, number(static_cast<int64_t>(text.size())), what)
      .wait();
  const auto nothing = at::empty({0}, at::kByte);
  std::vector<at::Tensor> inputs(static_cast<size_t>(group.size()), nothing);
  auto outputs = inputs;
  inputs.front() = bytes_of(text);
  at::Tensor joined = nothing;
  if (group.rank() == 0) {
    joined = at::empty({sizes.sum().item<int64_t>()}, at::kByte);
    int64_t at = 0;
    for (int64_t r = 0; r < group.size(); ++r) {
      const int64_t size = sizes.const_data_ptr<int64_t>()[r];
      outputs[static_cast<size_t>(r)] = joined.narrow(0, at, size);
      at += size;
    }
  }
  group.all_to_all(outputs, inputs, what).wait();
  return text_of(joined);
}

// Prefixes the text with its length, so that unpacked() can separate joined
// texts.
std::string packed(std::string_view text) {
  const auto size = static_cast<uint64_t>(text.size());
  std::string result(sizeof(size), '\0');
  std::memcpy(result.data(), &size, sizeof(size));
  return result.append(text);
}

std::vector<std::string> unpacked(std::string_view joined) {
  std::vector<std::string> texts;
  while (!joined.empty()) {
    uint64_t size = 0;
    std::memcpy(&size, joined.data(), sizeof(size));
    texts.emplace_back(joined.substr(sizeof(size), size));
    joined.remove_prefix(sizeof(size) + size);
  }
  return texts;
}

} // namespace

RankTree::RankTree(const World& world, int64_t fan_in)
    : world_size_(world.world_size()) {
  TORCH_INTERNAL_ASSERT(fan_in > 1);
  const auto name = detail::concat("tree/", world.next_id());
  // Each level connects the ranks that are first in a group of the level below.
  for (int64_t stride = 1;
       stride < world.world_size() && world.rank() % stride == 0;
       stride *= fan_in) {
    const int64_t first = world.rank() / (stride * fan_in) * (stride * fan_in);
    std::vector<int64_t> ranks;
    for (int64_t r = first;
         r < std::min(first + stride * fan_in, world.world_size());
         r += stride) {
      ranks.push_back(r);
    }
    levels_.push_back(
        world.make_group(detail::concat(name, "/", stride, "/", first), ranks));
  }
}

RankTree RankTree::shared(const World& world) {
  return world.world_size() <= kFanIn
             ? RankTree(world.world_size(), {world.group()})
             : RankTree(world);
}

std::vector<std::string> RankTree::gather(
    std::string_view text,
    std::string_view what) {
  if (!levels_.empty() && levels_.front().backend() == "fake") {
    return std::vector<std::string>(
        static_cast<size_t>(world_size_), std::string(text));
  }
  auto joined = packed(text);
  for (auto& group : levels_) {
    joined = gather_joined(group, joined, what);
    if (group.rank() != 0) {
      return {};
    }
  }
  return unpacked(joined);
}

std::string RankTree::broadcast(std::string_view text, std::string_view what) {
  std::string result(text);
  for (size_t i = levels_.size(); i-- > 0;) {
    auto& group = levels_[i];
    const auto size = number(static_cast<int64_t>(result.size()));
    group.broadcast(size, 0, what).wait();
    auto bytes = group.rank() == 0
                     ? bytes_of(result)
                     : at::empty({size.item<int64_t>()}, at::kByte);
    group.broadcast(bytes, 0, what).wait();
    result = text_of(bytes);
  }
  return result;
}

} // namespace weft::mesh
