#include <algorithm>
#include <cstdio>
#include <random>

#include <gtest/gtest.h>

#include "dtensor/redistribute/redistribute_plan.h"
#include "dtensor/spec/region.h"
#include "tests/dtensor/parts.h"

// What plans receive, on all ranks together, beside the least that any way
// there must.

namespace weft::dtensor {
namespace {

using dtensor::test::fake_mesh;

using Coordinate = std::vector<int64_t>;

std::vector<Coordinate> coordinates(const std::vector<int64_t>& shape) {
  std::vector<Coordinate> all{{}};
  for (const int64_t size : shape) {
    std::vector<Coordinate> longer;
    for (const auto& front : all) {
      for (int64_t i = 0; i < size; ++i) {
        longer.push_back(front);
        longer.back().push_back(i);
      }
    }
    all = std::move(longer);
  }
  return all;
}

struct Move {
  mesh::DeviceMesh mesh;
  std::vector<int64_t> sizes;
  Placements from;
  Placements to;

  Region held(const Placements& placements, const Coordinate& rank) const {
    return local_ranges_at(DTensorSpec(mesh, placements), sizes, rank);
  }
  double elements(const Placements& placements, const Coordinate& rank) const {
    return static_cast<double>(element_count(held(placements, rank)));
  }
  // What a rank needs and has not.
  double lacking(
      const Placements& before,
      const Placements& after,
      const Coordinate& rank) const {
    const auto common = common_region(held(before, rank), held(after, rank));
    return elements(after, rank) - static_cast<double>(element_count(common));
  }
};

double
received(const Move& move, const PlanStep& step, const Coordinate& rank) {
  double ranks = 1;
  auto whole = step.from;
  for (const int64_t i : step.mesh_dims) {
    ranks *= static_cast<double>(move.mesh.size(i));
    whole[i] = Replicate();
  }
  const double before = move.elements(step.from, rank);
  switch (step.kind) {
    case StepKind::kAllReduce:
      return 2 * before * (ranks - 1) / ranks;
    case StepKind::kReduceScatter:
      return move.elements(step.to, rank) * (ranks - 1);
    case StepKind::kAllGather:
      return move.elements(whole, rank) - before;
    case StepKind::kAllToAll:
      return move.lacking(step.from, step.to, rank);
    default:
      return 0;
  }
}

// On all ranks. Without a reduction: what each lacks. With one over n ranks: of
// what they hold (of copies only one counts) they have to receive all but one
// n-th, the one that adds; and then whatever they need beyond the parts that
// they added themselves. Source: Chan, Heimlich, Purkayastha and van de Geijn,
// Collective communication: theory, practice, and experience (2007), section 3.
double least(const Move& move) {
  double terms = 1;
  double copies = 1;
  for (size_t i = 0; i < move.from.size(); ++i) {
    const auto size = static_cast<double>(move.mesh.shape()[i]);
    if (move.from[i].is_partial() && !move.to[i].is_partial()) {
      terms *= size;
    }
    copies *= move.from[i].is_replicate() ? size : 1;
  }
  double lacking = 0;
  double held = 0;
  double needed = 0;
  for (const auto& rank : coordinates(move.mesh.shape())) {
    lacking += move.lacking(move.from, move.to, rank);
    held += move.elements(move.from, rank);
    needed += move.elements(move.to, rank);
  }
  const double added = held / copies / terms;
  return terms == 1 ? lacking
                    : added * (terms - 1) + std::max(0.0, needed - added);
}

Move draw(std::mt19937_64& random) {
  const auto below = [&](size_t n) { return random() % n; };
  const std::vector<std::vector<int64_t>> shapes{
      {2}, {4}, {8}, {2, 2}, {2, 4}, {3, 2}, {2, 2, 2}};
  const auto& shape = shapes[below(shapes.size())];
  const std::vector<std::string> names{"a", "b", "c"};
  Move move{
      fake_mesh(0, shape, {names.begin(), names.begin() + shape.size()}),
      {},
      {},
      {}};
  const std::vector<int64_t> lengths{1000, 1024, 1536, 2047};
  const size_t dims = 2 + below(2);
  for (size_t d = 0; d < dims; ++d) {
    move.sizes.push_back(lengths[below(lengths.size())]);
  }
  const auto placement = [&]() {
    const auto dim = static_cast<int64_t>(below(move.sizes.size()));
    const auto kind = below(8);
    return kind < 2   ? Replicate()
           : kind < 7 ? Shard(dim)
                      : StridedShard(dim, 2);
  };
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool pending = below(4) == 0;
    move.from.push_back(pending ? Partial() : placement());
    move.to.push_back(pending && below(4) == 0 ? Partial() : placement());
  }
  return move;
}

struct Figure {
  double ratio;
  std::string text;
};

std::string describe(const Move& move, const RedistributePlan& plan) {
  auto text = c10::str(
      c10::IntArrayRef(move.sizes),
      " on ",
      move.mesh.to_string(),
      " ",
      to_string(move.from),
      " -> ",
      to_string(move.to),
      ":");
  for (const auto& step : plan.steps) {
    text += c10::str(" ", to_string(step.kind), " ", to_string(step.to));
  }
  return text;
}

TEST(RedistributeBytes, PlansReceiveLittleMoreThanTheLeast) {
  std::mt19937_64 random(6);
  std::vector<Figure> figures;
  int64_t nothing = 0;
  while (figures.size() < 200) {
    const auto move = draw(random);
    const auto plan = find_plan(
        fitted(DTensorSpec(move.mesh, move.from), move.sizes),
        fitted(DTensorSpec(move.mesh, move.to), move.sizes),
        move.sizes,
        4);
    double total = 0;
    const double bound = least(move);
    for (const auto& rank : coordinates(move.mesh.shape())) {
      for (const auto& step : plan->steps) {
        total += received(move, step, rank);
      }
    }
    if (bound == 0) {
      EXPECT_EQ(total, 0) << describe(move, *plan);
      nothing += 1;
      continue;
    }
    EXPECT_GE(total, bound * (1 - 1e-9)) << describe(move, *plan);
    figures.push_back({total / bound, describe(move, *plan)});
  }
  std::ranges::stable_sort(figures, {}, &Figure::ratio);
  const auto min_of = std::ranges::count_if(
      figures, [](const auto& f) { return f.ratio < 1.0001; });
  std::printf(
      "least bytes in %lld of 200 plans (and %lld of no bytes); median %.3f, "
      "90%% %.3f, 99%% %.3f, most %.3f\n",
      static_cast<long long>(min_of),
      static_cast<long long>(nothing),
      figures[100].ratio,
      figures[180].ratio,
      figures[198].ratio,
      figures.back().ratio);
  for (size_t i = 190; i < figures.size(); ++i) {
    std::printf("%.3f %s\n", figures[i].ratio, figures[i].text.c_str());
  }
  EXPECT_LT(figures[100].ratio, 1.01);
}

} // namespace
} // namespace weft::dtensor
