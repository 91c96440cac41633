#include "dtensor/debug/visualize_sharding.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <set>
#include <vector>

#include <c10/util/StringUtil.h>

#include "dtensor/spec/dim_shards.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/failure.h"

namespace weft::dtensor {
namespace {

// A sharding with more rows or columns than kMaxSegments is shown as a list of
// at most kMaxLines ranks.
constexpr size_t kMaxSegments = 24;
constexpr size_t kMaxLines = 64;

struct RankPart {
  int64_t rank;
  std::vector<RowRanges> ranges;
};

std::vector<RankPart> parts_of(
    const DTensorSpec& spec,
    c10::IntArrayRef sizes) {
  const auto& mesh = spec.mesh();
  const auto& shape = mesh.shape();
  std::vector<RankPart> parts;
  for (int64_t i = 0; i < mesh.size(); ++i) {
    std::vector<int64_t> coordinate(shape.size(), 0);
    int64_t rest = i;
    for (size_t d = shape.size(); d-- > 0;) {
      coordinate[d] = rest % shape[d];
      rest /= shape[d];
    }
    parts.push_back(
        {mesh.ranks()[i], local_ranges_at(spec, sizes, coordinate)});
  }
  return parts;
}

std::string span_text(int64_t begin, int64_t end) {
  return end - begin == 1 ? std::to_string(begin)
                          : c10::str(begin, "-", end - 1);
}

// Returns e.g. "0-3,8". `ranks` must be ascending.
std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) {
      ++end;
    }
    text += (text.empty() ? "" : ",") + span_text(ranks[i], ranks[end - 1] + 1);
    i = end;
  }
  return text.empty() ? "no rank" : text;
}

std::string ranges_text(const RowRanges& ranges) {
  std::string text;
  for (const auto& range : ranges) {
    if (range.length > 0) {
      text += (text.empty() ? "" : ",") +
              span_text(range.begin, range.begin + range.length);
    }
  }
  return text.empty() ? "none" : text;
}

struct Segment {
  int64_t begin;
  int64_t end;
};

// Returns the longest segments of a dim of which every rank holds all rows or
// none.
std::vector<Segment> segments_of(
    const std::vector<RankPart>& parts,
    int64_t tensor_dim,
    int64_t size) {
  std::set<int64_t> edges{0, size};
  for (const auto& part : parts) {
    for (const auto& range : part.ranges[tensor_dim]) {
      edges.insert(range.begin);
      edges.insert(range.begin + range.length);
    }
  }
  std::vector<Segment> segments;
  int64_t begin = -1;
  for (const int64_t edge : edges) {
    if (begin >= 0 && edge <= size) {
      segments.push_back({begin, edge});
    }
    begin = edge;
  }
  return segments;
}

bool holds(const RowRanges& ranges, const Segment& segment) {
  return std::ranges::any_of(ranges, [&](const auto& range) {
    return range.begin <= segment.begin &&
           segment.end <= range.begin + range.length;
  });
}

class Picture {
 public:
  Picture(const DTensorSpec& spec, c10::IntArrayRef sizes)
      : spec_(spec), sizes_(sizes), parts_(parts_of(spec, sizes)) {
    for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
      const bool is_cut = std::ranges::any_of(
          spec.placements(), [&](const auto& p) { return p.is_shard(d); });
      if (is_cut) {
        cut_dims_.push_back(d);
      }
    }
  }

  std::string text() const {
    return c10::str(sizes_, " ", spec_.to_string(), "\n") + body() + pending() +
           empty_ranks();
  }

 private:
  std::string body() const {
    const bool is_empty = std::ranges::find(sizes_, 0) != sizes_.end();
    if (is_empty) {
      return "no elements\n";
    }
    if (cut_dims_.empty()) {
      return "all of it: ranks " + ranks_text(all_ranks()) + "\n";
    }
    if (cut_dims_.size() > 2) {
      return list();
    }
    const auto rows = segments_of(parts_, cut_dims_[0], sizes_[cut_dims_[0]]);
    std::vector<Segment> columns{{0, 0}};
    if (cut_dims_.size() == 2) {
      columns = segments_of(parts_, cut_dims_[1], sizes_[cut_dims_[1]]);
    }
    return rows.size() > kMaxSegments || columns.size() > kMaxSegments
               ? list()
               : grid(rows, columns);
  }

  std::vector<int64_t> all_ranks() const {
    std::vector<int64_t> ranks;
    for (const auto& part : parts_) {
      ranks.push_back(part.rank);
    }
    std::ranges::sort(ranks);
    return ranks;
  }

  std::string holders(const Segment& row, const Segment& column) const {
    std::vector<int64_t> ranks;
    for (const auto& part : parts_) {
      if (holds(part.ranges[cut_dims_[0]], row) &&
          (cut_dims_.size() == 1 || holds(part.ranges[cut_dims_[1]], column))) {
        ranks.push_back(part.rank);
      }
    }
    std::ranges::sort(ranks);
    return ranks_text(ranks);
  }

  std::string grid(
      const std::vector<Segment>& rows,
      const std::vector<Segment>& columns) const {
    std::vector<std::vector<std::string>> cells(rows.size() + 1);
    cells[0].push_back(c10::str("dim ", cut_dims_[0]));
    for (const auto& column : columns) {
      cells[0].push_back(
          cut_dims_.size() == 1 ? "ranks"
                                : c10::str(
                                      "dim ",
                                      cut_dims_[1],
                                      ": ",
                                      span_text(column.begin, column.end)));
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      cells[r + 1].push_back(span_text(rows[r].begin, rows[r].end));
      for (const auto& column : columns) {
        cells[r + 1].push_back(holders(rows[r], column));
      }
    }
    return aligned(cells);
  }

  static std::string aligned(
      const std::vector<std::vector<std::string>>& cells) {
    std::string text;
    for (const auto& row : cells) {
      std::string line;
      for (size_t c = 0; c < row.size(); ++c) {
        size_t width = 0;
        for (const auto& other : cells) {
          width = std::max(width, other[c].size());
        }
        auto cell = row[c];
        cell.resize(width, ' ');
        line += (c == 0 ? "" : " | ") + cell;
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
    return text;
  }

  std::string list() const {
    std::string text;
    for (size_t i = 0; i < std::min(parts_.size(), kMaxLines); ++i) {
      text += c10::str("rank ", parts_[i].rank, ": [");
      for (size_t d = 0; d < sizes_.size(); ++d) {
        const bool is_cut =
            std::ranges::find(cut_dims_, static_cast<int64_t>(d)) !=
            cut_dims_.end();
        text += (d == 0 ? "" : ", ") +
                (is_cut ? ranges_text(parts_[i].ranges[d]) : ":");
      }
      text += "]\n";
    }
    if (parts_.size() > kMaxLines) {
      text += c10::str("and ", parts_.size() - kMaxLines, " ranks more\n");
    }
    return text;
  }

  std::string pending() const {
    std::string text;
    for (int64_t i = 0; i < spec_.mesh_ndim(); ++i) {
      if (spec_.placement(i).is_partial()) {
        text += c10::str(
            "pending over ",
            spec_.mesh().mesh_dim_names()[i],
            ": each of its ranks holds a term of ",
            dtensor::to_string(Placements{spec_.placement(i)}),
            "\n");
      }
    }
    return text;
  }

  std::string empty_ranks() const {
    std::vector<int64_t> empty;
    for (const auto& part : parts_) {
      const bool has_nothing =
          std::ranges::any_of(part.ranges, [](const auto& ranges) {
            return std::ranges::all_of(
                ranges, [](const auto& range) { return range.length == 0; });
          });
      if (has_nothing) {
        empty.push_back(part.rank);
      }
    }
    std::ranges::sort(empty);
    const bool is_whole_empty = std::ranges::find(sizes_, 0) != sizes_.end();
    return empty.empty() || is_whole_empty
               ? ""
               : "nothing: ranks " + ranks_text(empty) + "\n";
  }

  const DTensorSpec& spec_;
  c10::IntArrayRef sizes_;
  std::vector<RankPart> parts_;
  std::vector<int64_t> cut_dims_;
};

std::string guarded(const std::function<std::string()>& text) {
  try {
    return text();
  } catch (const std::exception& error) {
    return c10::str("cannot be shown: ", mesh::message_of(error), "\n");
  }
}

} // namespace

std::string visualize_sharding(
    const DTensorSpec& spec,
    c10::IntArrayRef sizes) {
  return guarded([&] { return Picture(spec, sizes).text(); });
}

std::string visualize_sharding(const at::Tensor& dtensor) {
  return guarded([&]() -> std::string {
    if (!dtensor.defined()) {
      return "an undefined tensor\n";
    }
    const auto* impl = dtensor_impl(dtensor);
    if (!impl) {
      return c10::str(
          "a plain tensor ", dtensor.sizes(), ": all of it on this rank\n");
    }
    if (impl->spec().mesh_ndim() == 0) {
      return c10::str(impl->sizes(), " on no mesh: all of it on every rank\n");
    }
    return Picture(impl->spec(), impl->sizes()).text();
  });
}

} // namespace weft::dtensor
