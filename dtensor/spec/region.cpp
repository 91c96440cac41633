#include "dtensor/spec/region.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include <torch/torch.h>

namespace weft::dtensor {

int64_t row_count(const RowRanges& rows) {
  int64_t count = 0;
  for (const auto& range : rows) {
    count += range.length;
  }
  return count;
}

int64_t element_count(const Region& region) {
  int64_t count = 1;
  for (const auto& rows : region) {
    count *= row_count(rows);
  }
  return count;
}

RowRanges common_rows(const RowRanges& a, const RowRanges& b) {
  RowRanges common;
  auto x = a.begin();
  auto y = b.begin();
  while (x != a.end() && y != b.end()) {
    const int64_t x_end = x->begin + x->length;
    const int64_t y_end = y->begin + y->length;
    const int64_t begin = std::max(x->begin, y->begin);
    const int64_t length = std::min(x_end, y_end) - begin;
    if (length > 0) {
      common.push_back({begin, length});
    }
    (x_end < y_end ? x : y)++;
  }
  return common;
}

Region common_region(const Region& a, const Region& b) {
  Region common;
  for (size_t d = 0; d < a.size(); ++d) {
    common.push_back(common_rows(a[d], b[d]));
  }
  return common;
}

Region positions_in(const Region& held, const Region& part) {
  Region positions;
  for (size_t d = 0; d < held.size(); ++d) {
    RowRanges rows;
    auto from = held[d].begin();
    int64_t passed = 0;
    for (const auto& range : part[d]) {
      while (range.length > 0 && range.begin >= from->begin + from->length) {
        passed += from->length;
        ++from;
      }
      const int64_t begin =
          range.length > 0 ? passed + range.begin - from->begin : 0;
      if (!rows.empty() && rows.back().begin + rows.back().length == begin) {
        rows.back().length += range.length;
      } else {
        rows.push_back({begin, range.length});
      }
    }
    positions.push_back(std::move(rows));
  }
  return positions;
}

bool is_box(const Region& region) {
  return std::ranges::all_of(
      region, [](const auto& rows) { return rows.size() <= 1; });
}

at::Tensor take_region(const at::Tensor& tensor, const Region& positions) {
  auto taken = tensor;
  for (size_t d = 0; d < positions.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    const auto& rows = positions[d];
    if (rows.empty()) {
      taken = taken.narrow(dim, 0, 0);
    } else if (rows.size() == 1) {
      taken = taken.narrow(dim, rows[0].begin, rows[0].length);
    } else {
      std::vector<at::Tensor> pieces;
      for (const auto& range : rows) {
        pieces.push_back(taken.narrow(dim, range.begin, range.length));
      }
      taken = at::cat(pieces, dim);
    }
  }
  return taken;
}

namespace {

void put_from(
    const at::Tensor& tensor,
    const Region& positions,
    const at::Tensor& part,
    size_t d) {
  if (d == positions.size()) {
    tensor.copy_(part);
    return;
  }
  const auto dim = static_cast<int64_t>(d);
  int64_t passed = 0;
  for (const auto& range : positions[d]) {
    put_from(
        tensor.narrow(dim, range.begin, range.length),
        positions,
        part.narrow(dim, passed, range.length),
        d + 1);
    passed += range.length;
  }
}

// A copy between a box of a contiguous tensor and a contiguous part, in runs of
// bytes that are adjacent on both sides. A run has the rows of dim `first_dim`
// and everything in the dims after it.
struct BoxCopy {
  /// The length of a run in bytes.
  size_t run;
  size_t first_dim;
  std::vector<int64_t> strides;
};

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided &&
         tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// libtorch's own copy is faster for shorter runs, and for larger parts if there
// are several threads.
constexpr size_t kMinRun = 64;
constexpr size_t kMaxOfOneThread = size_t{1} << 20;

// Returns how to copy the box in runs, or nullopt if `positions` is not a box,
// the tensors are not contiguous CPU tensors of one dtype, or libtorch's own
// copy is faster.
std::optional<BoxCopy> plan_box(
    const at::Tensor& tensor,
    const Region& positions,
    const at::Tensor& part) {
  if (positions.empty() || !is_plain(tensor) || !is_plain(part) ||
      part.scalar_type() != tensor.scalar_type() ||
      (part.nbytes() > kMaxOfOneThread && at::get_num_threads() > 1) ||
      std::ranges::any_of(
          positions, [](const auto& rows) { return rows.size() != 1; })) {
    return std::nullopt;
  }
  BoxCopy copy{1, positions.size(), {}};
  const auto element = static_cast<int64_t>(tensor.element_size());
  int64_t whole = element;
  int64_t run = element;
  copy.strides.resize(positions.size());
  for (size_t d = positions.size(); d-- > 0;) {
    copy.strides[d] = whole;
    if (copy.first_dim == d + 1 && run == whole) {
      copy.first_dim = d;
      run *= positions[d][0].length;
    }
    whole *= tensor.size(static_cast<int64_t>(d));
  }
  copy.run = static_cast<size_t>(run);
  return copy.run < kMinRun ? std::nullopt : std::optional(std::move(copy));
}

// Calls `move(offset in the tensor, offset in the part)`, both in bytes, for
// each run.
template <class Move>
void for_each_run(
    const BoxCopy& copy,
    const Region& positions,
    const Move& move,
    size_t d,
    int64_t offset,
    int64_t& passed) {
  const auto& rows = positions[d][0];
  if (d == copy.first_dim) {
    move(offset + rows.begin * copy.strides[d], passed);
    passed += static_cast<int64_t>(copy.run);
    return;
  }
  for (int64_t i = rows.begin; i < rows.begin + rows.length; ++i) {
    for_each_run(
        copy, positions, move, d + 1, offset + i * copy.strides[d], passed);
  }
}

} // namespace

// A slice of each sample of a batch needs only a few memcpy calls, which cost
// less than one view.
void put_region(
    const at::Tensor& tensor,
    const Region& positions,
    const at::Tensor& part) {
  if (part.numel() == 0) {
    return;
  }
  const auto copy = plan_box(tensor, positions, part);
  if (!copy) {
    put_from(tensor, positions, part, 0);
    return;
  }
  auto* to = static_cast<char*>(tensor.mutable_data_ptr());
  const auto* from = static_cast<const char*>(part.const_data_ptr());
  int64_t passed = 0;
  for_each_run(
      *copy,
      positions,
      [&](int64_t there, int64_t here) {
        std::memcpy(to + there, from + here, copy->run);
      },
      0,
      0,
      passed);
}

void copy_region(
    const at::Tensor& part,
    const at::Tensor& tensor,
    const Region& positions) {
  if (part.numel() == 0) {
    return;
  }
  const auto copy = plan_box(tensor, positions, part);
  if (!copy) {
    part.copy_(take_region(tensor, positions));
    return;
  }
  auto* to = static_cast<char*>(part.mutable_data_ptr());
  const auto* from = static_cast<const char*>(tensor.const_data_ptr());
  int64_t passed = 0;
  for_each_run(
      *copy,
      positions,
      [&](int64_t there, int64_t here) {
        std::memcpy(to + here, from + there, copy->run);
      },
      0,
      0,
      passed);
}

std::vector<int64_t> sizes_of(const Region& region) {
  std::vector<int64_t> sizes;
  for (const auto& rows : region) {
    sizes.push_back(row_count(rows));
  }
  return sizes;
}

SplitCuts split_cuts(const DimShards& cuts, const std::vector<int64_t>& dims) {
  SplitCuts split;
  for (const auto& cut : cuts) {
    const bool is_inner = std::ranges::find(dims, cut.mesh_dim) != dims.end();
    if (is_inner) {
      split.inner.push_back(cut);
    } else if (split.inner.empty()) {
      split.outer.push_back(cut);
    }
  }
  return split;
}

std::vector<Region> group_regions(
    const std::vector<DimShards>& inner,
    c10::IntArrayRef sizes,
    c10::IntArrayRef mesh_shape,
    const std::vector<int64_t>& mesh_dims) {
  int64_t ranks = 1;
  for (const int64_t i : mesh_dims) {
    ranks *= mesh_shape[i];
  }
  std::vector<Region> regions;
  std::vector<int64_t> coordinate(mesh_shape.size(), 0);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t rest = rank;
    for (size_t i = mesh_dims.size(); i-- > 0;) {
      coordinate[mesh_dims[i]] = rest % mesh_shape[mesh_dims[i]];
      rest /= mesh_shape[mesh_dims[i]];
    }
    Region region;
    for (size_t d = 0; d < sizes.size(); ++d) {
      region.push_back(rows_at(inner[d], sizes[d], coordinate));
    }
    regions.push_back(std::move(region));
  }
  return regions;
}

namespace {

struct RegionLess {
  bool operator()(const Region& a, const Region& b) const {
    const auto less_range = [](const RowRange& x, const RowRange& y) {
      return std::pair(x.begin, x.length) < std::pair(y.begin, y.length);
    };
    return std::ranges::lexicographical_compare(
        a, b, [&](const RowRanges& x, const RowRanges& y) {
          return std::ranges::lexicographical_compare(x, y, less_range);
        });
  }
};

} // namespace

ExchangeMap::ExchangeMap(std::vector<Region> before, std::vector<Region> after)
    : before_(std::move(before)), after_(std::move(after)) {
  std::map<Region, std::vector<int64_t>, RegionLess> holders;
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    holders[before_[rank]].push_back(rank);
  }
  for (const auto& region : before_) {
    holders_.push_back(holders.at(region));
  }
}

Region ExchangeMap::sent(int64_t sender, int64_t receiver) const {
  const auto& holders = holders_[sender];
  const bool has_it = std::ranges::binary_search(holders, receiver);
  const auto count = static_cast<int64_t>(holders.size());
  const int64_t serving = has_it ? receiver : holders[receiver % count];
  if (serving != sender) {
    return Region(before_[sender].size(), RowRanges());
  }
  return common_region(before_[sender], after_[receiver]);
}

int64_t ExchangeMap::busiest() const {
  std::vector<int64_t> in(ranks(), 0);
  std::vector<int64_t> out(ranks(), 0);
  for (int64_t s = 0; s < ranks(); ++s) {
    for (int64_t r = 0; r < ranks(); ++r) {
      if (s != r) {
        const int64_t moved = element_count(sent(s, r));
        out[s] += moved;
        in[r] += moved;
      }
    }
  }
  return std::max(std::ranges::max(in), std::ranges::max(out));
}

} // namespace weft::dtensor
