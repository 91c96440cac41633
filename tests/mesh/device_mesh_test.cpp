#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/flight_recorder.h"
#include "mesh/device_mesh.h"
#include "mesh/error/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

DeviceMesh fake_mesh(
    int64_t rank,
    std::vector<int64_t> shape,
    std::vector<std::string> names) {
  int64_t size = 1;
  for (const int64_t n : shape) {
    size *= n;
  }
  return DeviceMesh::create(
      World::fake(rank, size), std::move(shape), std::move(names));
}

TEST(DeviceMesh, RanksLieRowMajor) {
  const auto mesh = fake_mesh(5, {2, 4}, {"dp", "tp"});
  EXPECT_EQ(mesh.ndim(), 2);
  EXPECT_EQ(mesh.size(), 8);
  EXPECT_EQ(mesh.size("tp"), 4);
  EXPECT_EQ(mesh.size(0), 2);
  EXPECT_EQ(mesh.coordinate("dp"), 1);
  EXPECT_EQ(mesh.coordinate(1), 1);
  EXPECT_EQ(mesh.rank(), 5);
  EXPECT_THAT(mesh.ranks(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(mesh.group("dp").ranks(), ElementsAre(1, 5));
  EXPECT_THAT(mesh.group("tp").ranks(), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(mesh.group("dp").rank(), 1);
  EXPECT_EQ(mesh.group("dp").name(), "dp/1");
  EXPECT_EQ(mesh.group("tp").name(), "tp/1");
  EXPECT_EQ(mesh.to_string(), "dp=2 tp=4");
  EXPECT_EQ(mesh.describe_rank(), "rank 5/8, mesh dp=2 tp=4");
}

TEST(DeviceMesh, SlicesKeepToThisRanksRowAndShareGroups) {
  const auto mesh = fake_mesh(13, {2, 3, 4}, {"pp", "dp", "tp"});
  const auto tp = mesh["tp"];
  EXPECT_THAT(tp.ranks(), ElementsAre(12, 13, 14, 15));
  EXPECT_EQ(tp.coordinate(0), 1);
  EXPECT_EQ(
      &tp.group(0).flight_recorder(), &mesh.group("tp").flight_recorder());
  const auto pp_tp = mesh.slice({"pp", "tp"});
  EXPECT_THAT(pp_tp.shape(), ElementsAre(2, 4));
  EXPECT_THAT(pp_tp.ranks(), ElementsAre(0, 1, 2, 3, 12, 13, 14, 15));
  EXPECT_EQ(pp_tp["tp"], tp);
  EXPECT_EQ(pp_tp["tp"].id(), mesh["tp"].id());
  EXPECT_EQ(pp_tp["tp"].hash(), tp.hash());
  EXPECT_FALSE(mesh["dp"] == tp);
  EXPECT_EQ(mesh.slice({"pp", "dp", "tp"}), mesh);
  EXPECT_EQ(tp["tp"], tp);
  EXPECT_EQ(tp.describe_rank(), "rank 13/24, mesh tp=4");
}

TEST(DeviceMesh, EqualShapesOfDifferentRootsDiffer) {
  const auto world = World::fake(0, 4);
  const auto one = DeviceMesh::create(world, {4}, {"tp"});
  const auto two = DeviceMesh::create(world, {4}, {"tp"});
  EXPECT_FALSE(one == two);
  EXPECT_EQ(DeviceMesh(one), one);
}

TEST(DeviceMesh, AMeshOutlivesItsRootsHandle) {
  const auto tp = fake_mesh(3, {2, 2}, {"dp", "tp"})["tp"];
  EXPECT_THAT(tp.ranks(), ElementsAre(2, 3));
  EXPECT_EQ(tp.group(0).size(), 2);
}

TEST(DeviceMesh, DefaultMeshIsOneRankWithNoDims) {
  const DeviceMesh mesh;
  EXPECT_EQ(mesh.ndim(), 0);
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.rank(), 0);
  EXPECT_EQ(mesh, DeviceMesh());
  EXPECT_EQ(mesh.hash(), DeviceMesh().hash());
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { mesh.group("tp"); }),
      HasSubstr("there is none"));
}

TEST(DeviceMesh, FlattenMakesOneGroupOfAllRanks) {
  const auto mesh = fake_mesh(13, {2, 3, 4}, {"pp", "dp", "tp"});
  const auto flat = mesh.slice({"pp", "tp"}).flatten();
  EXPECT_THAT(flat.mesh_dim_names(), ElementsAre("pp_tp"));
  EXPECT_THAT(flat.ranks(), ElementsAre(0, 1, 2, 3, 12, 13, 14, 15));
  EXPECT_EQ(flat.coordinate("pp_tp"), 5);
  EXPECT_EQ(flat.group(0).size(), 8);
  EXPECT_EQ(flat.group(0).name(), "pp_tp/0");
  EXPECT_EQ(flat, mesh.slice({"pp", "tp"}).flatten());
  EXPECT_EQ(flat["pp_tp"], flat);
  EXPECT_FALSE(flat == mesh.slice({"pp", "tp"}));

  const auto named = mesh.slice({"pp", "tp"}).flatten("model");
  EXPECT_THAT(named.mesh_dim_names(), ElementsAre("model"));
  EXPECT_EQ(
      &named.group(0).flight_recorder(), &flat.group(0).flight_recorder());
  EXPECT_EQ(mesh["tp"].flatten(), mesh["tp"]);
  EXPECT_EQ(
      &mesh["tp"].flatten("x").group("x").flight_recorder(),
      &mesh.group("tp").flight_recorder());
}

TEST(DeviceMesh, AGroupOfAllRanksIsTheWorlds) {
  const auto world = World::fake(1, 4);
  const auto mesh = DeviceMesh::create(world, {2, 2}, {"dp", "tp"});
  EXPECT_EQ(
      &mesh.flatten().group(0).flight_recorder(),
      &world.group().flight_recorder());
  const auto line = DeviceMesh::create(world, {1, 4}, {"dp", "tp"});
  EXPECT_EQ(
      &line.group("tp").flight_recorder(), &world.group().flight_recorder());
  EXPECT_EQ(line.group("dp").backend(), "self");
}

TEST(DeviceMesh, SixteenThousandRanksAreCheap) {
  const auto mesh = fake_mesh(16000, {256, 8, 8}, {"dp", "cp", "tp"});
  EXPECT_EQ(mesh.size(), 16384);
  EXPECT_EQ(mesh.group("dp").size(), 256);
  EXPECT_EQ(mesh.slice({"dp", "cp"}).flatten().size(), 2048);
}

struct Counter {
  int value = 0;
};
struct Other {
  int value = 7;
};

TEST(DeviceMesh, ExtensionsBelongToTheMeshNotTheHandle) {
  const auto mesh = fake_mesh(0, {2, 2}, {"dp", "tp"});
  mesh["tp"].extension<Counter>().value = 3;
  EXPECT_EQ(mesh["tp"].extension<Counter>().value, 3);
  EXPECT_EQ(mesh["dp"].extension<Counter>().value, 0);
  EXPECT_EQ(mesh["tp"].extension<Other>().value, 7);
}

TEST(DeviceMesh, WrongArgumentsSayWhatIsWrong) {
  const auto world = World::fake(2, 8);
  const auto create = [&](std::vector<int64_t> shape,
                          std::vector<std::string> names) {
    return message_of_thrown<c10::ValueError>(
        [&] { DeviceMesh::create(world, shape, names); });
  };
  EXPECT_THAT(
      create({2, 3}, {"dp", "tp"}),
      AllOf(
          HasSubstr("got dp=2 tp=3 with 6 ranks, expected the 8"),
          HasSubstr("rank 2/8")));
  EXPECT_THAT(create({2, 4}, {"dp"}), HasSubstr("2 vs 1"));
  EXPECT_THAT(create({2, 4}, {"dp", "dp"}), HasSubstr("\"dp\" names two"));
  EXPECT_THAT(create({2, 4}, {"dp", ""}), HasSubstr("Mesh dim 1"));
  EXPECT_THAT(
      create({8, 0}, {"dp", "tp"}), HasSubstr("mesh dim \"tp\": got 0 ranks"));

  const auto mesh = DeviceMesh::create(world, {2, 4}, {"dp", "tp"});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { mesh["pp"]; }),
      AllOf(
          HasSubstr("\"pp\""),
          HasSubstr("there is dp, tp"),
          HasSubstr("rank 2/8, mesh dp=2 tp=4")));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        mesh.slice({"tp", "dp"});
      }),
      HasSubstr("in the mesh's order; got tp, dp"));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { mesh.size(2); }),
      HasSubstr("Mesh dim 2 does not exist; there are 2"));
  EXPECT_THROW(mesh.slice({}), c10::ValueError);
}

TEST(DeviceMeshRanks, EveryDimsGroupReducesOverItAlone) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    auto over_tp = at::full({1}, self.rank, at::kLong);
    auto over_dp = over_tp.clone();
    auto over_all = over_tp.clone();
    auto work = mesh.group("tp").all_reduce(over_tp);
    mesh.group("dp").all_reduce(over_dp).wait();
    work.wait();
    mesh.flatten().group(0).all_reduce(over_all).wait();
    EXPECT_EQ(over_tp.item<int64_t>(), self.rank < 2 ? 1 : 5);
    EXPECT_EQ(over_dp.item<int64_t>(), self.rank % 2 == 0 ? 2 : 4);
    EXPECT_EQ(over_all.item<int64_t>(), 6);
    // A second mesh of the same names has groups of its own.
    const auto again = self.mesh({2, 2}, {"dp", "tp"});
    EXPECT_NE(
        &again.group("tp").flight_recorder(),
        &mesh.group("tp").flight_recorder());
    again.group("tp").barrier();
  });
}

TEST(DeviceMeshRanks, AGroupIsAMeshOfOneDim) {
  run_ranks(3, [](RankContext& self) {
    if (self.rank == 1) {
      return;
    }
    const auto group = self.world.make_group("outer", {0, 2});
    const auto mesh = DeviceMesh::from_group(self.world, group, "replica");
    EXPECT_EQ(mesh.to_string(), "replica=2");
    EXPECT_EQ(mesh.ranks(), (std::vector<int64_t>{0, 2}));
    EXPECT_EQ(mesh.coordinate("replica"), self.rank / 2);
    EXPECT_EQ(mesh.rank(), self.rank);
    EXPECT_EQ(mesh.root(), mesh);
    EXPECT_EQ(mesh.flatten("all").ranks(), mesh.ranks());
    EXPECT_EQ(
        &mesh.group(int64_t{0}).flight_recorder(), &group.flight_recorder());
    auto value = at::full({1}, self.rank, at::kLong);
    mesh.flatten("all").group(int64_t{0}).all_reduce(value).wait();
    EXPECT_EQ(value.item<int64_t>(), 2);
  });
}

TEST(DeviceMeshRanks, AGroupWithoutThisRankIsRefused) {
  run_ranks(2, [](RankContext& self) {
    if (self.rank == 0) {
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>(
              [&] { self.world.make_group("others", {1}); }),
          HasSubstr("rank 0"));
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>([&] {
            DeviceMesh::from_group(
                self.world, self.world.make_group("own", {0}), "");
          }),
          HasSubstr("empty name"));
    }
  });
}

TEST(DeviceMeshRanks, RanksThatDisagreeOnTheShapeAllFail) {
  run_ranks(4, [](RankContext& self) {
    const auto message = message_of_thrown<DisagreementError>([&] {
      self.rank == 3 ? self.mesh({4, 1}, {"dp", "tp"})
                     : self.mesh({2, 2}, {"dp", "tp"});
    });
    EXPECT_THAT(
        message,
        AllOf(
            HasSubstr("[agreement] device mesh: rank 0 has 'dp=2 tp=2'"),
            HasSubstr("rank 3 has 'dp=4 tp=1'")));
  });
}

} // namespace
} // namespace weft::mesh
