#include "mesh/backends/staged_backend.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "mesh/backends/gloo_backend.h"
#include "mesh/communicator/communicator.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using test::RankContext;
using test::run_ranks;

// Staged on the CPU itself: every call goes through a copy and back.
TEST(StagedBackend, GivesWhatItsHostGives) {
  constexpr int kRanks = 3;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(kRanks, [&](RankContext& self) {
    const GroupMembers members{
        .name = "staged", .rank = self.rank, .ranks = {0, 1, 2}};
    const auto host = make_gloo_backend(
        members, {store, Cancellation()}, make_gloo_device("127.0.0.1"));
    Communicator staged(make_staged_backend(host, c10::DeviceType::CPU));
    auto world = self.world.group();

    auto a = at::arange(6, at::kFloat).div(7).add(self.rank);
    auto b = a.clone();
    staged.all_reduce(a, ReduceOp::kAvg).wait();
    world.all_reduce(b, ReduceOp::kAvg).wait();
    EXPECT_TRUE(at::equal(a, b));

    staged.broadcast(a, 2).wait();
    world.broadcast(b, 2).wait();
    EXPECT_TRUE(at::equal(a, b));

    std::vector<at::Tensor> parts;
    std::vector<at::Tensor> same;
    for (int64_t r = 0; r < kRanks; ++r) {
      parts.push_back(at::zeros({r}));
      same.push_back(at::ones({r}));
    }
    const auto mine = at::full({self.rank}, self.rank + 0.5);
    staged.all_gather_uneven(parts, mine).wait();
    world.all_gather_uneven(same, mine).wait();
    EXPECT_TRUE(at::equal(at::cat(parts), at::cat(same)));

    auto reduced = at::empty({self.rank});
    auto expected = at::empty({self.rank});
    staged.reduce_scatter_uneven(reduced, parts).wait();
    world.reduce_scatter_uneven(expected, same).wait();
    EXPECT_TRUE(at::equal(reduced, expected));

    std::vector<at::Tensor> received(kRanks);
    std::vector<at::Tensor> sent(kRanks);
    for (int64_t r = 0; r < kRanks; ++r) {
      sent[r] = at::full({2}, 10.0 * self.rank + r);
      received[r] = at::empty({2});
    }
    staged.all_to_all(received, sent).wait();
    EXPECT_EQ(received[1][0].item<double>(), 10.0 + self.rank);
    staged.barrier();
    EXPECT_EQ(staged.backend(), "staged");
  });
}

} // namespace
} // namespace weft::mesh
