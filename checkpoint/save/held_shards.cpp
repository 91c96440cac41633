#include "checkpoint/save/held_shards.h"

#include <algorithm>

namespace weft::checkpoint {
namespace {

bool next_box(
    std::vector<size_t>& index,
    const std::vector<dtensor::RowRanges>& ranges) {
  for (size_t d = index.size(); d-- > 0;) {
    if (++index[d] < ranges[d].size()) {
      return true;
    }
    index[d] = 0;
  }
  return false;
}

/// Returns the begin of each range in a local tensor that stores them in
/// sequence.
std::vector<int64_t> begins_in_part(const dtensor::RowRanges& rows) {
  std::vector<int64_t> begins;
  int64_t begin = 0;
  for (const auto& range : rows) {
    begins.push_back(begin);
    begin += range.length;
  }
  return begins;
}

} // namespace

std::vector<HeldShard> held_shards(
    const dtensor::DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate) {
  const auto is_empty = [](const std::vector<int64_t>& sizes) {
    return std::ranges::count(sizes, 0) > 0;
  };
  if (spec.is_chunked()) {
    auto box = dtensor::local_box_at(spec, global_sizes, coordinate);
    if (is_empty(box.sizes)) {
      return {};
    }
    const std::vector<int64_t> origin(global_sizes.size(), 0);
    return {{.box = std::move(box), .at = origin}};
  }
  const auto ranges = dtensor::local_ranges_at(spec, global_sizes, coordinate);
  std::vector<std::vector<int64_t>> begins;
  for (const auto& rows : ranges) {
    begins.push_back(begins_in_part(rows));
  }
  std::vector<HeldShard> boxes;
  std::vector<size_t> index(ranges.size(), 0);
  do {
    HeldShard held;
    for (size_t d = 0; d < ranges.size(); ++d) {
      held.box.offset.push_back(ranges[d][index[d]].begin);
      held.box.sizes.push_back(ranges[d][index[d]].length);
      held.at.push_back(begins[d][index[d]]);
    }
    if (!is_empty(held.box.sizes)) {
      boxes.push_back(std::move(held));
    }
  } while (next_box(index, ranges));
  return boxes;
}

} // namespace weft::checkpoint
