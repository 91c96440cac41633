// Saves of one run: planned once, in the background, and what goes wrong then.

#include "checkpoint/save/saver.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/load/load.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/store/store.h"
#include "checkpoint/verify.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "mesh/rank_tree.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;
using dtensor::StridedShard;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kRows = 12;

class Savers : public ::testing::Test {
 protected:
  std::vector<int64_t> steps() const {
    std::vector<int64_t> numbers;
    for (const auto& step : list_steps(folder_)) {
      numbers.push_back(step.step);
    }
    return numbers;
  }

  void expect_no_leftovers() const {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-"))
          << entry.path();
    }
  }

  test::TempFolder temp_;
  const fs::path folder_ = temp_.path();
};

// Every tensor is full of `value`.
StateDicts state_of(const mesh::DeviceMesh& mesh, double value) {
  const auto at = [&](std::vector<int64_t> sizes,
                      const Placements& placements) {
    return dtensor::distribute_tensor(
        at::full(sizes, value, at::kFloat), mesh, placements, std::nullopt);
  };
  StateDicts dicts;
  dicts["model"] = {
      {"rows", at({kRows, 5}, {Replicate(), Shard(0)})},
      {"both", at({7, 3}, {Shard(0), Shard(1)})},
      {"strided", at({kRows}, {StridedShard(0, 3), Replicate()})},
      {"whole", at({4}, {Replicate(), Replicate()})},
      {"plain", at::full({3}, value, at::kDouble)}};
  return dicts;
}

void fill(const StateDicts& dicts, double value) {
  for (const auto& [name, tensor] : dicts.at("model")) {
    tensor.fill_(value);
  }
}

// On one rank alone.
void expect_step(const fs::path& checkpoints, int64_t step) {
  StateDicts dicts;
  dicts["model"] = {
      {"rows", at::zeros({kRows, 5})},
      {"both", at::zeros({7, 3})},
      {"strided", at::zeros({kRows})},
      {"whole", at::zeros({4})},
      {"plain", at::zeros({3}, at::kDouble)}};
  load(step_path(checkpoints, step), dicts);
  for (const auto& [name, tensor] : dicts.at("model")) {
    EXPECT_TRUE(tensor.eq(static_cast<double>(step)).all().item<bool>())
        << name << " of step " << step;
  }
}

TEST_F(Savers, PlansOnceWhileTheTensorsStayTheSame) {
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    Saver saver(folder_, {.world = self.world, .fsync = false, .keep = 2});
    auto dicts = state_of(mesh, 1);
    for (int64_t step = 1; step <= 4; ++step) {
      fill(dicts, static_cast<double>(step));
      EXPECT_EQ(saver.save(dicts, {.step = step}), step_path(folder_, step));
      EXPECT_EQ(saver.stats().plan_was_cached, step > 1);
    }
    dicts["model"].erase("plain");
    saver.save(dicts, {.step = 5});
    EXPECT_FALSE(saver.stats().plan_was_cached);
  });
  EXPECT_EQ(steps(), (std::vector<int64_t>{5, 4})) << "keep = 2";
  expect_step(folder_, 4);
  EXPECT_EQ(read_latest(folder_), 5);
  expect_no_leftovers();
}

TEST_F(Savers, TensorsMayChangeWhileTheyAreWritten) {
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    Saver saver(
        folder_,
        {.world = self.world, .bytes_per_second = 4'000, .sha256 = true});
    auto dicts = state_of(mesh, 1);
    saver.prepare_async(dicts);
    for (int64_t step = 1; step <= 3; ++step) {
      fill(dicts, static_cast<double>(step));
      saver.save_async(dicts, {.step = step});
      fill(dicts, -1);
      saver.check();
    }
    saver.wait();
    EXPECT_FALSE(saver.is_in_flight());
    const auto stats = saver.stats();
    EXPECT_TRUE(stats.plan_was_cached);
    EXPECT_GE(stats.staging_bytes, stats.bytes);
    EXPECT_GE(stats.total, stats.blocked);
    // Every dtype has one value in all its tensors, so -1 would have shown.
    const auto last = state_of(mesh, 0);
    load(step_path(folder_, 3), last);
    EXPECT_TRUE(dtensor::to_local(last.at("model").at("rows"))
                    .eq(3)
                    .all()
                    .item<bool>());
  });
  for (const int64_t step : {1, 2, 3}) {
    expect_step(folder_, step);
    EXPECT_THAT(verify(step_path(folder_, step)), IsEmpty());
  }
}

TEST_F(Savers, TheBandwidthIsHeld) {
  Saver saver(folder_, {.fsync = false, .bytes_per_second = 20 << 20});
  const StateDicts dicts{{"model", {{"w", at::ones({2, 1 << 20})}}}};
  saver.save_async(dicts, {.step = 1});
  saver.wait();
  // 8 MiB in pieces of 4 MiB: the first goes at once.
  EXPECT_GE(saver.stats().total.count(), 4.0 / 20);
}

// At its pace it would take hours.
TEST_F(Savers, UnthrottlesWhenWaitedFor) {
  Saver saver(folder_, {.fsync = false, .bytes_per_second = 1'000});
  const StateDicts dicts{{"model", {{"w", at::ones({2, 1 << 20})}}}};
  for (const int64_t step : {1, 2}) {
    saver.save_async(dicts, {.step = step});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(saver.is_in_flight());
    saver.unthrottle();
    saver.wait();
    EXPECT_THAT(verify(step_path(folder_, step)), IsEmpty());
  }
}

TEST_F(Savers, WhatIsInFlightIsWrittenBeforeTheSaverGoes) {
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({1, 2}, {"dp", "tp"});
    Saver saver(folder_, {.world = self.world, .bytes_per_second = 2'000});
    saver.save_async(state_of(mesh, 8), {.step = 8});
  });
  expect_step(folder_, 8);
}

TEST_F(Savers, AFailureInTheBackgroundIsSaidOnceAndTheNextSaveWorks) {
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    Saver saver(folder_, {.world = self.world, .fsync = false, .keep = 1});
    const auto dicts = state_of(mesh, 1);
    saver.save(dicts, {.step = 1});
    saver.save_async(dicts, {.step = 1}); // exists
    EXPECT_THAT(
        message_of_thrown<SaveError>([&] { saver.wait(); }),
        AllOf(
            HasSubstr("step 1 was not saved: rank 0 could not commit"),
            HasSubstr(
                "already exists, and Weft does not overwrite checkpoints")));
    saver.check();
    saver.save_async(dicts, {.step = 1});
    while (saver.is_in_flight()) {
      std::this_thread::yield();
    }
    EXPECT_THROW(saver.check(), SaveError);
    saver.check();
    fill(dicts, 2);
    saver.save_async(dicts, {.step = 2});
    saver.wait();
  });
  EXPECT_EQ(steps(), std::vector<int64_t>{2});
  expect_step(folder_, 2);
  expect_no_leftovers();
}

TEST_F(Savers, RanksThatSaveOtherThingsAreNamed) {
  run_ranks(3, [&](RankContext& self) {
    const auto mesh = self.mesh({3}, {"dp"});
    Saver saver(folder_, {.world = self.world, .fsync = false});
    StateDicts dicts;
    dicts["model"]["w"] =
        dtensor::on_mesh(at::ones({self.rank == 2 ? 5 : 4}), mesh);
    saver.save_async(dicts, {.step = 1});
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>([&] { saver.wait(); }),
        AllOf(
            HasSubstr("rank 0 has model.w"), HasSubstr("rank 2 has model.w")));
    dicts["model"]["w"] = dtensor::on_mesh(at::ones({4}), mesh);
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>(
            [&] { saver.save(dicts, {.step = 3 + self.rank / 2}); }),
        AllOf(HasSubstr("rank 0 has step 3"), HasSubstr("rank 2 has step 4")));
  });
  EXPECT_THAT(steps(), IsEmpty());
  expect_no_leftovers();
}

std::vector<SaveItem> items_on(const mesh::DeviceMesh& mesh) {
  std::vector<SaveItem> items;
  const std::vector<Placements> all = {
      {Replicate(), Replicate()},
      {Replicate(), Shard(0)},
      {Shard(0), Shard(0)},
      {Shard(1), Replicate()},
      {Replicate(), StridedShard(0, 2)}};
  for (size_t i = 0; i < 40; ++i) {
    items.push_back(
        {.key = "w" + std::to_string(i),
         .spec = dtensor::DTensorSpec(mesh, all[i % all.size()]),
         .sizes = {7 + static_cast<int64_t>(i % 6), 9},
         .item_bytes = 4});
  }
  items.push_back({.key = "plain", .spec = {}, .sizes = {6}, .item_bytes = 8});
  items.push_back({.key = "none", .spec = {}, .sizes = {0}, .item_bytes = 8});
  return items;
}

// Marks every element of every tensor by who writes it.
TEST(SavePlans, EachElementIsWrittenOnceByTheWriterThatAllName) {
  for (const auto& [dp, tp] : {std::pair{2, 3}, {4, 1}, {1, 4}, {5, 2}}) {
    const auto mesh = mesh::DeviceMesh::create(
        mesh::World::fake(0, dp * tp), {dp, tp}, {"dp", "tp"});
    const SavePlan plan(items_on(mesh), dp * tp);
    std::vector<at::Tensor> written;
    for (const auto& item : plan.items()) {
      written.push_back(at::zeros(item.sizes, at::kLong));
    }
    for (int64_t rank = 0; rank < dp * tp; ++rank) {
      for (const auto& [item, part, held] : plan.chunks_of(rank)) {
        auto box = written[item];
        for (size_t d = 0; d < held.box.sizes.size(); ++d) {
          box = box.narrow(
              static_cast<int64_t>(d), held.box.offset[d], held.box.sizes[d]);
        }
        box += 1;
        EXPECT_EQ(plan.writer_of(item, rank), rank);
      }
    }
    for (size_t i = 0; i < written.size(); ++i) {
      EXPECT_TRUE(written[i].eq(1).all().item<bool>()) << plan.items()[i].key;
      for (int64_t rank = 0; rank < dp * tp; ++rank) {
        const auto writer = plan.writer_of(i, rank);
        EXPECT_EQ(plan.writer_of(i, writer), writer);
      }
    }
  }
}

TEST(SavePlans, ReplicasShareTheWork) {
  constexpr int64_t kRanks = 512;
  const auto mesh = mesh::DeviceMesh::create(
      mesh::World::fake(0, kRanks), {kRanks / 4, 4}, {"dp", "tp"});
  std::vector<SaveItem> items;
  for (int64_t i = 0; i < 1024; ++i) {
    items.push_back(
        {.key = std::to_string(i),
         .spec = dtensor::DTensorSpec(
             mesh,
             {Replicate(),
              i % 2 == 0 ? dtensor::Placement(Shard(0))
                         : dtensor::Placement(Replicate())}),
         .sizes = {i % 2 == 0 ? 16 : 4, 8},
         .item_bytes = 4});
  }
  const SavePlan plan(items, kRanks);
  const int64_t share = 512 * (16 + 4) * 8 * 4 / kRanks;
  for (const int64_t rank : {0, 1, 255, 511}) {
    int64_t bytes = 0;
    for (const auto& chunk : plan.chunks_of(rank)) {
      bytes += chunk.held.box.sizes[0] * chunk.held.box.sizes[1] * 4;
    }
    EXPECT_EQ(bytes, share) << "rank " << rank;
  }
}

TEST(RankTrees, EveryRanksTextComesToTheFirstAndItsOwnToAll) {
  for (const int ranks : {1, 2, 5, 7}) {
    run_ranks(ranks, [&](RankContext& self) {
      mesh::RankTree tree(self.world, /*fan_in=*/2);
      for (int round = 0; round < 2; ++round) {
        // Of all sizes, none among them.
        const auto own =
            std::string(static_cast<size_t>(self.rank) * 1000, 'a');
        const auto texts = tree.gather(own, "test");
        ASSERT_EQ(texts.size(), self.rank == 0 ? ranks : 0U);
        for (size_t r = 0; r < texts.size(); ++r) {
          EXPECT_EQ(texts[r], std::string(r * 1000, 'a'));
        }
        EXPECT_EQ(
            tree.broadcast(self.rank == 0 ? "first" : "other", "test"),
            "first");
        EXPECT_EQ(tree.broadcast("", "test"), "");
      }
    });
  }
}

} // namespace
} // namespace weft::checkpoint
