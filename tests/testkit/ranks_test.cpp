#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testkit/run_ranks.h"
#include "tests/support/run_ranks.h"

namespace weft::testkit {
namespace {

using ::testing::HasSubstr;

/// The message of the RankError that `body` ends with.
std::string failure_of(
    Ranks& ranks,
    const std::function<void(RankContext&)>& body) {
  try {
    ranks.run(body);
  } catch (const RankError& error) {
    return error.what();
  }
  return "";
}

TEST(Ranks, KeepThreadsAndWorldsForTheNextBody) {
  constexpr int kRanks = 3;
  Ranks ranks(kRanks);
  std::vector<std::thread::id> threads(kRanks);
  std::vector<mesh::DeviceMesh> meshes;
  ranks.run([&](RankContext& self) {
    threads.at(self.rank) = std::this_thread::get_id();
    const auto mesh = self.mesh({3}, {"dp"});
    if (self.rank == 0) {
      meshes.push_back(mesh);
    }
  });
  for (int body = 0; body < 3; ++body) {
    ranks.run([&](RankContext& self) {
      EXPECT_EQ(std::this_thread::get_id(), threads.at(self.rank));
      EXPECT_EQ(self.world_size, kRanks);
      auto sum = at::full({2}, double(self.rank + body));
      self.world.group().all_reduce(sum).wait();
      EXPECT_EQ(sum[0].item<double>(), 3 + 3 * body);
    });
  }
  EXPECT_EQ(meshes.at(0).size("dp"), kRanks);
}

TEST(Ranks, OfABodyThatFailsAreNamedAndRunNoOther) {
  Ranks ranks(3);
  const auto message = failure_of(ranks, [](RankContext& self) {
    if (self.rank == 1) {
      throw std::runtime_error("no data");
    }
    self.world.group().barrier(); // does not wait for rank 1
  });
  EXPECT_EQ(message, "rank 1 threw: no data");
  try {
    ranks.run([](RankContext&) { ADD_FAILURE() << "ran"; });
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("(rank 1 threw: no data)"));
    EXPECT_THAT(error.what(), HasSubstr("Start new ones"));
  }
}

TEST(Ranks, ThatRanNothingEnd) {
  const Ranks ranks(2);
}

TEST(SharedRanks, HaveTheSameMeshUntilTheDimsChange) {
  test::SharedRanks ranks;
  // What next_id() says tells a world that ran before from a new one.
  const auto next_id = [&](int64_t dp, int64_t tp) {
    int64_t id = -1;
    ranks.run(dp, tp, [&](RankContext& self, const mesh::DeviceMesh& mesh) {
      EXPECT_EQ(mesh.size("dp"), dp);
      EXPECT_EQ(mesh.size("tp"), tp);
      const auto own = self.world.next_id();
      if (self.rank == 0) {
        id = own;
      }
    });
    return id;
  };
  const auto first = next_id(2, 1);
  EXPECT_EQ(next_id(2, 1), first + 1);
  EXPECT_EQ(next_id(1, 2), first);
  EXPECT_EQ(next_id(2, 1), first);
  ranks.clear();
  EXPECT_EQ(next_id(2, 1), first);
}

} // namespace
} // namespace weft::testkit
