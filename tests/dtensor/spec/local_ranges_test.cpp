// Which rows ranks hold under any placements, against torch's own split and
// order of cuts.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/spec/dim_shards.h"
#include "dtensor/spec/placement.h"
#include "dtensor/spec/spec.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"

namespace weft::dtensor {
namespace {

using dtensor::test::fake_line;
using dtensor::test::fake_mesh;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;

std::vector<int64_t> coordinate_at(c10::IntArrayRef shape, int64_t index) {
  std::vector<int64_t> coordinate(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    coordinate[i] = index % shape[i];
    index /= shape[i];
  }
  return coordinate;
}

int64_t product(c10::IntArrayRef numbers) {
  return std::accumulate(
      numbers.begin(), numbers.end(), int64_t{1}, std::multiplies<>());
}

using RankRows = std::vector<std::vector<int64_t>>;

// Every rank's rows of a dim, one by one.
RankRows rows_of_ranks(
    const Placements& placements,
    const std::vector<int64_t>& shape,
    int64_t size) {
  RankRows result;
  const auto cuts = dim_shards(placements, shape, 0);
  for (int64_t r = 0; r < product(shape); ++r) {
    result.emplace_back();
    for (const auto& range : rows_at(cuts, size, coordinate_at(shape, r))) {
      for (int64_t row = 0; row < range.length; ++row) {
        result.back().push_back(range.begin + row);
      }
    }
  }
  return result;
}

// One shard of a list of rows, by the words of torch's _split_tensor.
std::vector<int64_t> cut_list(
    const std::vector<int64_t>& rows,
    const Placement& placement,
    int64_t shards,
    int64_t index) {
  const auto size = static_cast<int64_t>(rows.size());
  std::vector<int64_t> held;
  const auto take = [&](int64_t begin, int64_t length) {
    for (int64_t i = begin; i < begin + length; ++i) {
      held.push_back(rows[i]);
    }
  };
  if (placement.has_shard_sizes()) {
    const auto& sizes = placement.shard_sizes();
    take(
        std::accumulate(sizes.begin(), sizes.begin() + index, int64_t{0}),
        sizes[index]);
    return held;
  }
  for (int64_t c = 0; c < placement.split_factor(); ++c) {
    const auto chunk = shard_range(size, placement.split_factor(), c);
    const auto part = shard_range(chunk.length, shards, index);
    take(chunk.begin + part.begin, part.length);
  }
  return held;
}

// The order of mesh dims that the split factors stand for, as torch decodes it:
// each is the product of the later mesh dims that cut before it.
std::optional<std::vector<size_t>> decode(
    const Placements& placements,
    const std::vector<int64_t>& shape) {
  std::vector<size_t> order;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i].is_shard()) {
      order.push_back(i);
    }
  }
  do {
    const bool fits = std::ranges::all_of(order, [&](size_t mesh_dim) {
      int64_t factor = 1;
      for (const size_t before : order) {
        if (before == mesh_dim) {
          break;
        }
        factor *= before > mesh_dim ? shape[before] : 1;
      }
      return factor == placements[mesh_dim].split_factor();
    });
    if (fits) {
      return order;
    }
  } while (std::ranges::next_permutation(order).found);
  return std::nullopt;
}

RankRows expected_rows(
    const Placements& placements,
    const std::vector<int64_t>& shape,
    int64_t size) {
  const auto decoded = decode(placements, shape);
  RankRows result;
  for (int64_t r = 0; r < product(shape); ++r) {
    const auto coordinate = coordinate_at(shape, r);
    std::vector<int64_t> rows(size);
    std::iota(rows.begin(), rows.end(), 0);
    if (decoded) {
      for (const size_t i : *decoded) {
        const auto plain =
            placements[i].has_shard_sizes() ? placements[i] : Shard(0);
        rows = cut_list(rows, plain, shape[i], coordinate[i]);
      }
    } else {
      for (size_t i = 0; i < placements.size(); ++i) {
        if (placements[i].is_shard()) {
          rows = cut_list(rows, placements[i], shape[i], coordinate[i]);
        }
      }
    }
    result.push_back(rows);
  }
  return result;
}

// Expected rows are torch 2.15's.
TEST(LocalRanges, StridedShardsHoldAPartOfEveryChunk) {
  EXPECT_THAT(
      rows_of_ranks({StridedShard(0, 2)}, {4}, 9),
      ElementsAre(
          ElementsAre(0, 1, 5),
          ElementsAre(2, 3, 6),
          ElementsAre(4, 7),
          ElementsAre(8)));
  EXPECT_THAT(
      rows_of_ranks({StridedShard(0, 3)}, {2}, 10),
      ElementsAre(ElementsAre(0, 1, 4, 5, 8), ElementsAre(2, 3, 6, 7, 9)));
  EXPECT_THAT(
      rows_of_ranks({Shard(0), StridedShard(0, 2)}, {2, 2}, 10),
      ElementsAre(
          ElementsAre(0, 1, 3),
          ElementsAre(2, 4),
          ElementsAre(5, 6, 8),
          ElementsAre(7, 9)));
  EXPECT_THAT(
      rows_of_ranks({StridedShard(0, 4), Shard(0)}, {2, 2}, 16),
      ElementsAre(
          ElementsAre(0, 1, 4, 5),
          ElementsAre(8, 9, 12, 13),
          ElementsAre(2, 3, 6, 7),
          ElementsAre(10, 11, 14, 15)));
  EXPECT_THAT(
      rows_of_ranks({StridedShard(0, 2), StridedShard(0, 2)}, {2, 2}, 16),
      ElementsAre(
          ElementsAre(0, 1, 8, 9),
          ElementsAre(2, 3, 10, 11),
          ElementsAre(4, 5, 12, 13),
          ElementsAre(6, 7, 14, 15)));
}

TEST(LocalRanges, AdjacentRowsAreOneRange) {
  const std::vector<int64_t> sizes{9, 2};
  const DTensorSpec spec(fake_line(0, 4), {StridedShard(0, 2)});
  const auto ranges = local_ranges(spec, sizes);
  EXPECT_THAT(ranges[0], ElementsAre(RowRange{0, 2}, RowRange{5, 1}));
  EXPECT_THAT(ranges[1], ElementsAre(RowRange{0, 2}));
  EXPECT_THAT(
      local_ranges_at(spec, sizes, {3})[0], ElementsAre(RowRange{8, 1}));
  EXPECT_THAT(local_sizes(spec, sizes), ElementsAre(3, 2));
  EXPECT_THAT(local_sizes_at(spec, sizes, {2}), ElementsAre(2, 2));
  const auto empty = local_ranges_at(spec, {2, 2}, {3});
  ASSERT_EQ(empty[0].size(), 1U);
  EXPECT_EQ(empty[0][0].length, 0);
}

TEST(LocalRanges, FollowTorchWhereverItsOrderIsOne) {
  const std::vector<std::vector<int64_t>> shapes{
      {1}, {2}, {3}, {4}, {2, 2}, {2, 3}, {3, 2}, {4, 2}, {2, 2, 2}, {2, 3, 2}};
  for (const auto& shape : shapes) {
    const auto lists =
        static_cast<int64_t>(std::pow(6, static_cast<double>(shape.size())));
    for (int64_t code = 0; code < lists; ++code) {
      Placements placements;
      int64_t digits = code;
      for (size_t i = 0; i < shape.size(); ++i, digits /= 6) {
        placements.push_back(
            digits % 6 == 0   ? Replicate()
            : digits % 6 == 5 ? StridedShard(0, 6)
                              : StridedShard(0, digits % 6));
      }
      SCOPED_TRACE(to_string(placements));
      const bool decodes = decode(placements, shape).has_value();
      for (int64_t size = 0; size < 26; ++size) {
        const auto actual = rows_of_ranks(placements, shape, size);
        // Left to right, a factor that others stand for in part only is
        // another thing for rows that do not divide.
        if (decodes || shape.size() == 1) {
          EXPECT_EQ(actual, expected_rows(placements, shape, size));
        }
      }
      const int64_t even = product(shape) * 24 * 24;
      EXPECT_EQ(
          rows_of_ranks(placements, shape, even),
          expected_rows(placements, shape, even));
    }
  }
}

TEST(LocalRanges, EveryRowIsHeldOnceAndInOrder) {
  const std::vector<Placement> kinds{
      Shard(0),
      StridedShard(0, 2),
      StridedShard(0, 3),
      StridedShard(0, 4),
      StridedShard(0, 6)};
  const std::vector<int64_t> shape{2, 3, 2};
  for (const auto& a : kinds) {
    for (const auto& b : kinds) {
      for (const auto& c : kinds) {
        for (int64_t size = 0; size < 40; ++size) {
          std::vector<int64_t> all;
          for (const auto& rows : rows_of_ranks({a, b, c}, shape, size)) {
            EXPECT_TRUE(std::ranges::is_sorted(rows));
            all.insert(all.end(), rows.begin(), rows.end());
          }
          std::ranges::sort(all);
          std::vector<int64_t> expected(size);
          std::iota(expected.begin(), expected.end(), 0);
          EXPECT_EQ(all, expected) << to_string({a, b, c});
        }
      }
    }
  }
}

TEST(LocalBox, AStridedShardBehindAnotherMeshDimIsOneBox) {
  // 9 rows: tp has 5 and 4; dp cuts those in 2, 2, 1, 0 and 1, 1, 1, 1.
  const auto mesh = fake_mesh(0, {4, 2}, {"dp", "tp"});
  const DTensorSpec spec(mesh, {StridedShard(0, 2), Shard(0)});
  const std::vector<int64_t> sizes{9};
  EXPECT_TRUE(has_local_boxes(spec, sizes));
  std::vector<std::vector<int64_t>> boxes;
  for (int64_t r = 0; r < 8; ++r) {
    const auto box = local_box_at(spec, sizes, coordinate_at({4, 2}, r));
    boxes.push_back({box.offset[0], box.sizes[0]});
  }
  EXPECT_THAT(
      boxes,
      ElementsAre(
          ElementsAre(0, 2),
          ElementsAre(5, 1),
          ElementsAre(2, 2),
          ElementsAre(6, 1),
          ElementsAre(4, 1),
          ElementsAre(7, 1),
          ElementsAre(5, 0),
          ElementsAre(8, 1)));
  // Rows that tp was given, cut again over dp.
  const DTensorSpec given(mesh, {StridedShard(0, 2), Shard(0, {1, 8})});
  EXPECT_THAT(local_box_at(given, sizes, {1, 1}).offset, ElementsAre(3));
  EXPECT_THAT(local_box_at(given, sizes, {0, 0}).sizes, ElementsAre(1));
  EXPECT_THAT(local_box_at(given, sizes, {1, 0}).sizes, ElementsAre(0));
}

TEST(LocalBox, GivenSizes) {
  const DTensorSpec spec(
      fake_mesh(3, {2, 2}, {"dp", "tp"}), {Shard(0, {1, 4}), Shard(1)});
  const auto box = local_box(spec, {5, 3});
  EXPECT_THAT(box.offset, ElementsAre(1, 2));
  EXPECT_THAT(box.sizes, ElementsAre(4, 1));
  const DTensorSpec nested(
      fake_mesh(2, {2, 2}, {"dp", "tp"}), {Shard(0), Shard(0, {0, 3})});
  EXPECT_THAT(local_box(nested, {6}).sizes, ElementsAre(0));
  EXPECT_THAT(local_box_at(nested, {6}, {1, 1}).offset, ElementsAre(3));
}

TEST(LocalBox, ListsOfRangesAreRefusedOnEveryRank) {
  for (int64_t rank = 0; rank < 4; ++rank) {
    // Rank 3 has one range.
    const DTensorSpec spec(fake_line(rank, 4), {StridedShard(0, 2)});
    EXPECT_FALSE(has_local_boxes(spec, {9, 2}));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          local_box(spec, {9, 2});
        }),
        AllOf(
            HasSubstr(
                "shape [9, 2] under [_S(0, 2)] are not contiguous blocks"),
            HasSubstr("local_ranges()"),
            HasSubstr("rank " + std::to_string(rank) + "/4")));
  }
  const DTensorSpec one(fake_line(0, 1), {StridedShard(0, 2)});
  EXPECT_TRUE(has_local_boxes(one, {9}));
}

TEST(Sizes, MustAddUpOnEveryRank) {
  const auto mesh = fake_mesh(1, {2, 2}, {"dp", "tp"});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        local_sizes(DTensorSpec(mesh, {Replicate(), Shard(0, {3, 5})}), {9, 2});
      }),
      AllOf(
          HasSubstr("rows of S(0, [3, 5]) on mesh dim \"tp\""),
          HasSubstr("8 vs 9"),
          HasSubstr("sizes [9, 2] under [R, S(0, [3, 5])]"),
          HasSubstr("rank 1/4, mesh dp=2 tp=2")));
  // dp leaves 3 rows on this rank, and 2 on others.
  const DTensorSpec uneven(mesh, {Shard(0), Shard(0, {1, 2})});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { local_box(uneven, {5}); }),
      HasSubstr("3 vs 2"));
  EXPECT_THAT(local_box(uneven, {6}).sizes, ElementsAre(2));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        DTensorSpec(mesh, {Shard(0, {1, 2, 3}), Replicate()});
      }),
      AllOf(
          HasSubstr("S(0, [1, 2, 3])"),
          HasSubstr("mesh dim \"dp\": 3 vs 2"),
          HasSubstr("rank 1/4")));
  const auto single = fake_mesh(1, {2, 1}, {"dp", "tp"});
  EXPECT_NO_THROW(fitted(DTensorSpec(single, {Shard(0), Shard(0, {4})}), {8}));
  EXPECT_THROW(
      fitted(DTensorSpec(single, {Shard(0), Shard(0, {8})}), {8}),
      c10::ValueError);
}

TEST(Sizes, OfTheChunkRuleAreAPlainShard) {
  const auto mesh = fake_mesh(0, {2, 2}, {"dp", "tp"});
  const auto fit = [&](const Placements& placements, int64_t size) {
    return to_string(
        fitted(DTensorSpec(mesh, placements), {size}).placements());
  };
  EXPECT_EQ(fit({Shard(0, {3, 2}), Replicate()}, 5), "[S(0), R]");
  EXPECT_EQ(fit({Shard(0, {2, 3}), Replicate()}, 5), "[S(0, [2, 3]), R]");
  EXPECT_EQ(
      fit({StridedShard(0, 1), StridedShard(0, 2)}, 5), "[S(0), _S(0, 2)]");
  EXPECT_EQ(fit({Shard(0), Partial()}, 5), "[S(0), P(sum)]");
  const auto line = fake_mesh(0, {1, 4}, {"dp", "tp"});
  EXPECT_EQ(
      to_string(
          fitted(
              DTensorSpec(line, {StridedShard(0, 4), Shard(0, {1, 1, 1, 1})}),
              {4})
              .placements()),
      "[S(0), S(0)]");
}

} // namespace
} // namespace weft::dtensor
