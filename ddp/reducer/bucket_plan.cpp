#include "ddp/reducer/bucket_plan.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kDefaultCapMb = 25.0;
constexpr double kFirstCapMb = 1.0;

/// The bucket of a group that is being filled.
struct OpenBucket {
  size_t index = 0;
  int64_t bytes = 0;
  int64_t cap = 0;
  /// The number of buckets of the same group before this one.
  size_t number = 0;
};

int64_t to_bytes(double mb, const char* option) {
  WEFT_CHECK(
      std::isfinite(mb) && mb > 0.0,
      "ddp",
      mesh::ErrorContext{mesh::detail::concat("option ", option)},
      option,
      ": got ",
      mb,
      ", expected the largest size of a bucket in MiB, e.g. 25.");
  return static_cast<int64_t>(std::min(mb * kMiB, 9e18));
}

} // namespace

int64_t BucketCaps::of(size_t index) const {
  if (index < each.size()) {
    return each[index];
  }
  return index == 0 ? first : rest;
}

BucketCaps bucket_caps(
    std::optional<double> cap_mb,
    const std::vector<double>& cap_mb_list) {
  const auto cap = to_bytes(cap_mb.value_or(kDefaultCapMb), "bucket_cap_mb");
  BucketCaps caps{
      .first = cap_mb ? cap : static_cast<int64_t>(kFirstCapMb * kMiB),
      .rest = cap};
  for (const double mb : cap_mb_list) {
    caps.each.push_back(to_bytes(mb, "bucket_cap_mb_list"));
  }
  return caps;
}

std::vector<std::vector<size_t>> plan_buckets(
    const std::vector<BucketItem>& items,
    const std::vector<size_t>& order,
    const BucketCaps& caps) {
  std::vector<std::vector<size_t>> buckets;
  // The position in `order` of each bucket's last gradient.
  std::vector<size_t> full_at;
  std::map<int64_t, OpenBucket> open;
  for (size_t position = 0; position < order.size(); ++position) {
    const BucketItem& item = items.at(order[position]);
    auto found = open.find(item.group);
    const bool fits = found != open.end() &&
                      found->second.bytes + item.bytes <= found->second.cap;
    if (!fits) {
      const size_t number = found == open.end() ? 0 : found->second.number + 1;
      found = open.insert_or_assign(
                      item.group,
                      OpenBucket{
                          .index = buckets.size(),
                          .cap = caps.of(number),
                          .number = number})
                  .first;
      buckets.emplace_back();
      full_at.push_back(0);
    }
    OpenBucket& bucket = found->second;
    bucket.bytes += item.bytes;
    buckets[bucket.index].push_back(order[position]);
    full_at[bucket.index] = position;
  }
  std::vector<size_t> ranked(buckets.size());
  for (size_t i = 0; i < ranked.size(); ++i) {
    ranked[i] = i;
  }
  std::sort(ranked.begin(), ranked.end(), [&](size_t a, size_t b) {
    return full_at[a] < full_at[b];
  });
  std::vector<std::vector<size_t>> sorted;
  sorted.reserve(buckets.size());
  for (const size_t i : ranked) {
    sorted.push_back(std::move(buckets[i]));
  }
  return sorted;
}

} // namespace weft::ddp
