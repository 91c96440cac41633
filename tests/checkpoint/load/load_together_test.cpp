// Who reads what several ranks hold, and which step is loaded.

#include <filesystem>
#include <fstream>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/files/error.h"
#include "checkpoint/load/load.h"
#include "checkpoint/load/newest.h"
#include "checkpoint/save/save.h"
#include "checkpoint/store/store.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using dtensor::Replicate;
using dtensor::Shard;
using dtensor::StateDict;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

at::Tensor rising(at::IntArrayRef sizes, double start) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat)
      .add_(start)
      .view(sizes);
}

class LoadTogether : public ::testing::Test {
 protected:
  test::TempFolder scratch_;
};

StateDicts repeated_state(const mesh::DeviceMesh& mesh, bool with_values) {
  const auto make = [&](at::IntArrayRef sizes, double start) {
    return with_values ? rising(sizes, start) : at::zeros(sizes);
  };
  const auto place = [&](const at::Tensor& whole,
                         const dtensor::Placements& placements) {
    return dtensor::distribute_tensor(whole, mesh, placements, std::nullopt);
  };
  StateDict model;
  for (int i = 0; i < 6; ++i) {
    model["everywhere" + std::to_string(i)] =
        place(make({40, 30}, i), {Replicate(), Replicate()});
    model["columns" + std::to_string(i)] =
        place(make({40, 30}, 100 + i), {Replicate(), Shard(1)});
    model["rows" + std::to_string(i)] =
        place(make({7, 30}, 200 + i), {Shard(0), Replicate()});
  }
  model["cut_twice"] = place(make({4, 9}, 3), {Shard(0), Shard(1)});
  model["large"] = place(make({600, 1000}, 1), {Replicate(), Shard(0)});
  model["number"] = place(make({}, 9), {Replicate(), Replicate()});
  model["plain"] = make({50}, 4);
  model["flags"] =
      place(make({9}, 0).fmod(2).to(at::kBool), {Replicate(), Replicate()});
  return {{"model", std::move(model)}};
}

TEST_F(LoadTogether, OneReplicaReadsForAll) {
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    save(
        scratch_.path(),
        repeated_state(mesh, true),
        {.step = 1, .fsync = false});
  });
  const auto manifest = read_manifest(scratch_.path() / "step-1");
  int64_t on_disk = 0;
  int64_t headers = 0;
  for (const auto& [name, file] : manifest.files) {
    on_disk += file.bytes;
    headers += file.header_bytes;
  }
  for (const auto& [dp, tp] : {std::pair{2, 2}, {4, 1}, {1, 4}, {3, 1}}) {
    for (const bool all_or_nothing : {true, false}) {
      std::mutex mutex;
      int64_t read = 0;
      int64_t read_by_each = 0;
      run_ranks(dp * tp, [&, dp = dp, tp = tp](RankContext& self) {
        const auto mesh = self.mesh({dp, tp}, {"dp", "tp"});
        const auto expected = repeated_state(mesh, true);
        for (const auto read_by : {ReadBy::kOneReplica, ReadBy::kEveryRank}) {
          const auto dicts = repeated_state(mesh, false);
          const auto stats = load(
              scratch_.path() / "step-1",
              dicts,
              {.all_or_nothing = all_or_nothing, .read_by = read_by});
          EXPECT_EQ(stats.read_by, read_by);
          for (const auto& [name, tensor] : dicts.at("model")) {
            const auto& other = expected.at("model").at(name);
            EXPECT_TRUE(
                dtensor::is_dtensor(tensor)
                    ? at::equal(
                          dtensor::to_local(tensor), dtensor::to_local(other))
                    : at::equal(tensor, other))
                << name;
          }
          const std::lock_guard lock(mutex);
          (read_by == ReadBy::kOneReplica ? read : read_by_each) +=
              stats.bytes_read;
        }
      });
      SCOPED_TRACE(testing::Message() << dp << "x" << tp);
      EXPECT_GT(read, on_disk - headers);
      if (dp == 2 && tp == 2) { // No piece is shared by parts.
        EXPECT_LE(read, on_disk - headers + dp * tp * headers);
        EXPECT_GT(read_by_each, read * 3 / 2);
      }
    }
  }
}

TEST_F(LoadTogether, TheDefaultOnOneHostIsThatEveryRankReads) {
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 1}, {"dp", "tp"});
    const auto dicts = repeated_state(mesh, true);
    save(scratch_.path(), dicts, {.step = 1, .fsync = false});
    EXPECT_EQ(
        load(scratch_.path() / "step-1", dicts).read_by, ReadBy::kEveryRank);
  });
}

void flip_byte(const fs::path& folder, const std::string& tensor) {
  const auto manifest = read_manifest(folder);
  const auto& chunk = manifest.tensors.at(tensor).chunks.at(0);
  std::fstream file(
      folder / chunk.file, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(chunk.begin + 1);
  const auto old = file.get();
  file.seekp(chunk.begin + 1);
  file.put(static_cast<char>(old ^ 4));
}

// The rank that reads for all meets damage: nobody waits for its values.
TEST_F(LoadTogether, AReaderThatFailsStopsAll) {
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    save(
        scratch_.path(),
        repeated_state(mesh, true),
        {.step = 1, .fsync = false});
    auto group = self.world.group();
    if (self.rank == 0) {
      flip_byte(scratch_.path() / "step-1", "model.columns3");
    }
    group.barrier();
    const auto dicts = repeated_state(mesh, false);
    EXPECT_THAT(
        message_of_thrown<CheckpointError>([&] {
          load(
              scratch_.path() / "step-1",
              dicts,
              {.read_by = ReadBy::kOneReplica});
        }),
        AllOf(HasSubstr("model.columns3"), HasSubstr("(rank ")));
    for (const auto& [name, tensor] : dicts.at("model")) {
      const auto local =
          dtensor::is_dtensor(tensor) ? dtensor::to_local(tensor) : tensor;
      EXPECT_FALSE(local.any().item<bool>()) << name;
    }
  });
}

TEST_F(LoadTogether, RanksThatAskForDifferentThingsAreNamed) {
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 1}, {"dp", "tp"});
    const auto dicts = repeated_state(mesh, true);
    save(scratch_.path(), dicts, {.step = 1, .fsync = false});
    LoadOptions options;
    options.read_by = self.rank == 0 ? ReadBy::kEveryRank : ReadBy::kOneReplica;
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>(
            [&] { load(scratch_.path() / "step-1", dicts, options); }),
        HasSubstr("read_by"));
  });
}

TEST_F(LoadTogether, TheNewestSoundStepIsFound) {
  run_ranks(3, [&](RankContext& self) {
    const auto mesh = self.mesh({3, 1}, {"dp", "tp"});
    const auto make = [&](double value) {
      return StateDicts{
          {"model",
           {{"w",
             dtensor::distribute_tensor(
                 at::full({6, 2}, value),
                 mesh,
                 {Shard(0), Replicate()},
                 std::nullopt)}}}};
    };
    const auto into = make(0);
    EXPECT_FALSE(load_newest(scratch_.path() / "none", into));
    for (const int64_t step : {10, 20, 30, 40}) {
      save(
          scratch_.path(),
          make(static_cast<double>(step)),
          {.step = step, .fsync = false});
    }
    auto group = self.world.group();
    group.barrier();
    if (self.rank == 0) {
      flip_byte(scratch_.path() / "step-30", "model.w");
      fs::remove(scratch_.path() / "step-40" / kManifestName);
    }
    group.barrier();
    std::vector<std::string> reasons;
    const auto loaded = load_newest(
        scratch_.path(), into, {}, [&](const auto& step, const auto& reason) {
          reasons.push_back(std::to_string(step.step) + ": " + reason);
        });
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->folder.step, 20);
    EXPECT_EQ(loaded->manifest.step, 20);
    EXPECT_THAT(loaded->stats.loaded, ElementsAre("model.w"));
    EXPECT_THAT(loaded->damaged, ElementsAre(40, 30));
    EXPECT_TRUE(at::equal(
        dtensor::to_local(into.at("model").at("w")), at::full({2, 2}, 20.0F)));
    if (self.rank == 0) {
      ASSERT_EQ(reasons.size(), 2U);
      EXPECT_THAT(
          reasons[0], AllOf(HasSubstr("40: "), HasSubstr("manifest.json")));
      EXPECT_THAT(reasons[1], AllOf(HasSubstr("30: "), HasSubstr("model.w")));
    } else {
      EXPECT_THAT(reasons, IsEmpty());
    }
    group.barrier();
    if (self.rank == 0) {
      flip_byte(scratch_.path() / "step-20", "model.w");
      flip_byte(scratch_.path() / "step-10", "model.w");
    }
    group.barrier();
    EXPECT_THAT(
        message_of_thrown<CheckpointError>(
            [&] { load_newest(scratch_.path(), into); }),
        AllOf(
            HasSubstr("none of the 4 checkpoints"),
            HasSubstr("the newest is step 40")));
    // Another model is not a damage: the search ends.
    const StateDicts other{{"model", {{"v", at::zeros({1})}}}};
    save(scratch_.path(), make(1), {.step = 50, .fsync = false});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          load_newest(scratch_.path(), other, {.world = self.world});
        }),
        HasSubstr("1 tensor is missing: \"model.v\""));
  });
}

} // namespace
} // namespace weft::checkpoint
