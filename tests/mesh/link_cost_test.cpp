#include "mesh/link_cost.h"

#include <limits>

#include <gtest/gtest.h>

#include "mesh/measure_links.h"
#include "mesh/world.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

DeviceMesh fake_mesh() {
  return DeviceMesh::create(World::fake(0, 8), {2, 4}, {"dp", "tp"});
}

TEST(LinkCost, OneRankCostsNothing) {
  const LinkCost link{.latency_us = 5, .bandwidth_gb_s = 1};
  for (const auto kind :
       {Collective::kAllReduce,
        Collective::kAllGather,
        Collective::kReduceScatter,
        Collective::kAllToAll,
        Collective::kBroadcast}) {
    EXPECT_EQ(collective_us(kind, 1, 1e6, link), 0) << to_string(kind);
    EXPECT_EQ(sent_bytes(kind, 1, 1e6), 0) << to_string(kind);
  }
}

TEST(LinkCost, IsLatencyPlusBytesOverBandwidth) {
  const LinkCost link{.latency_us = 5, .bandwidth_gb_s = 2};
  EXPECT_DOUBLE_EQ(sent_bytes(Collective::kAllGather, 4, 8000), 6000);
  EXPECT_DOUBLE_EQ(sent_bytes(Collective::kAllReduce, 4, 8000), 12000);
  EXPECT_DOUBLE_EQ(
      collective_us(Collective::kAllGather, 4, 8000, link), 2 * 5 + 3);
  EXPECT_DOUBLE_EQ(
      collective_us(Collective::kAllReduce, 4, 8000, link), 4 * 5 + 6);
  EXPECT_DOUBLE_EQ(
      collective_us(Collective::kAllToAll, 5, 1e4, link), 3 * 5 + 4);
}

TEST(LinkCost, IsSharedByAllMeshesOfARoot) {
  const auto mesh = fake_mesh();
  const auto usual = default_link_cost("fake");
  EXPECT_EQ(link_cost(mesh, 1), usual);
  const LinkCost slow{.latency_us = 100, .bandwidth_gb_s = 0.5};
  set_link_cost(mesh["tp"], "tp", slow);
  EXPECT_EQ(link_cost(mesh, 1), slow);
  EXPECT_EQ(link_cost(mesh["tp"], 0), slow);
  EXPECT_EQ(link_cost(mesh, 0), usual);
  EXPECT_EQ(link_cost(mesh.flatten(), 0), slow);
}

template <class Body>
void expect_refused(const Body& body, const std::vector<std::string>& parts) {
  const auto message = test::message_of_thrown<c10::ValueError>(body);
  for (const auto& part : parts) {
    EXPECT_THAT(message, testing::HasSubstr(part));
  }
}

TEST(LinkCost, RefusesWhatIsNoPrice) {
  const auto mesh = fake_mesh();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  expect_refused(
      [&] {
        set_link_cost(mesh, "tp", {1, 0});
      },
      {"[cost_model] tp", "bandwidth_gb_s is 0", "above 0"});
  expect_refused(
      [&] {
        set_link_cost(mesh, "tp", {1, inf});
      },
      {"bandwidth_gb_s is inf"});
  expect_refused(
      [&] {
        set_link_cost(mesh, "dp", {nan, 1});
      },
      {"latency_us is nan"});
  expect_refused(
      [&] {
        set_link_cost(mesh, "dp", {-1, 1});
      },
      {"latency_us is -1"});
  expect_refused(
      [&] {
        set_link_cost(mesh, "pp", {1, 1});
      },
      {"pp", "dp", "tp"});
}

TEST(LinkCost, FitFindsWhatTimesWereMadeOf) {
  const LinkCost link{.latency_us = 7, .bandwidth_gb_s = 3};
  std::vector<TimedCollective> timed;
  for (const auto kind : {Collective::kAllGather, Collective::kAllReduce}) {
    for (const double bytes : {1e3, 1e5, 1e6}) {
      timed.push_back({kind, bytes, collective_us(kind, 4, bytes, link)});
    }
  }
  const auto found = fit_link_cost(timed, 4, {});
  EXPECT_NEAR(found.latency_us, 7, 1e-9);
  EXPECT_NEAR(found.bandwidth_gb_s, 3, 1e-9);
}

TEST(LinkCost, FitOfNothingIsTheTables) {
  const LinkCost usual{.latency_us = 40, .bandwidth_gb_s = 1.5};
  EXPECT_EQ(fit_link_cost({}, 4, usual), usual);
  EXPECT_EQ(fit_link_cost({{Collective::kAllGather, 1e3, 0}}, 4, usual), usual);
  const auto one_size =
      std::vector<TimedCollective>(3, {Collective::kAllGather, 1e3, 10});
  EXPECT_EQ(fit_link_cost(one_size, 4, usual), usual);
  // Larger messages that took less time.
  const auto odd = fit_link_cost(
      {{Collective::kAllGather, 1e3, 100}, {Collective::kAllGather, 1e6, 10}},
      4,
      usual);
  EXPECT_NO_THROW(check_link_cost("odd", odd));
}

TEST(LinkCost, MeasuredOnesAreTheSameOnAllRanks) {
  std::vector<std::vector<LinkCost>> found(4);
  test::run_ranks(4, [&](test::RankContext& self) {
    const auto mesh = self.mesh({2, 1, 2}, {"dp", "pp", "tp"});
    found[self.rank] = measure_link_costs(mesh["tp"]);
    EXPECT_EQ(link_cost(mesh, 0), found[self.rank][0]);
    EXPECT_EQ(link_cost(mesh["tp"], 0), found[self.rank][2]);
  });
  for (const auto& costs : found) {
    EXPECT_EQ(costs, found[0]);
    for (const auto& cost : costs) {
      EXPECT_NO_THROW(check_link_cost("measured", cost));
    }
  }
  const auto imagined = fake_mesh();
  EXPECT_EQ(measure_link_costs(imagined)[0], default_link_cost("fake"));
}

} // namespace
} // namespace weft::mesh
