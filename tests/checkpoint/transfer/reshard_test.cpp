// Checkpoints cut for another mesh: as its ranks would have saved them.

#include "checkpoint/transfer/reshard.h"

#include <set>
#include <tuple>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/compare.h"
#include "checkpoint/files/error.h"
#include "checkpoint/save/save.h"
#include "checkpoint/store/store.h"
#include "checkpoint/verify.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "tests/checkpoint/sample.h"
#include "tests/checkpoint/transfer/exchange_state.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::MeshSizes;
using checkpoint::parse_mesh_sizes;
using checkpoint::reshard;
using dtensor::Replicate;
using dtensor::Shard;
using dtensor::StridedShard;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(MeshSizes, AreReadOrRefusedWithWhatIsWrong) {
  EXPECT_EQ(parse_mesh_sizes("dp=2,tp=16"), (MeshSizes{{"dp", 2}, {"tp", 16}}));
  EXPECT_EQ(parse_mesh_sizes("a=1 b=2  c=3").size(), 3);
  for (const char* text :
       {"",
        "dp",
        "dp=",
        "=2",
        "dp=0",
        "dp=-1",
        "dp=2x",
        "dp=2,,tp=1",
        "dp=2,dp=2",
        "dp=99999999999999999999"}) {
    EXPECT_THAT(
        message_of_thrown<mesh::UsageError>([&] { parse_mesh_sizes(text); }),
        HasSubstr("The format is dp=2,tp=4"))
        << text;
  }
}

class Reshard : public ::testing::Test {
 protected:
  fs::path save(const std::string& name, int64_t dp, int64_t tp) const {
    return save_state(name, dp, tp, [this](const mesh::DeviceMesh& mesh) {
      return exchange_state(tensors_, mesh, true);
    });
  }

  fs::path save_state(
      const std::string& name,
      int64_t dp,
      int64_t tp,
      const std::function<checkpoint::StateDicts(const mesh::DeviceMesh&)>&
          make) const {
    run_ranks(static_cast<int>(dp * tp), [&](RankContext& self) {
      checkpoint::SaveOptions options;
      options.step = 7;
      options.fsync = false;
      options.state = R"({"cursor": {"sample": 12}})";
      options.layout = R"({"buckets": [1, 2]})";
      checkpoint::save(
          scratch_.path() / name,
          make(self.mesh({dp, tp}, {"dp", "tp"})),
          options);
    });
    return scratch_.path() / name / "step-7";
  }

  checkpoint::Resharded cut(
      const fs::path& from,
      const std::string& name,
      const std::string& mesh) const {
    checkpoint::ReshardOptions options;
    options.mesh = parse_mesh_sizes(mesh);
    options.fsync = false;
    return reshard(from, scratch_.path() / name, options);
  }

  template <class Error>
  std::string refusal(
      const fs::path& from,
      const std::string& name,
      const std::string& mesh) const {
    return message_of_thrown<Error>([&] { cut(from, name, mesh); });
  }

  test::TempFolder scratch_;
  std::vector<ExchangeTensor> tensors_ = exchange_tensors(WEFT_ORACLE);
};

using Boxes = std::set<std::tuple<
    std::string,
    std::string,
    std::vector<int64_t>,
    std::vector<int64_t>>>;

// Where each box of each tensor is, by file.
Boxes boxes_of(const fs::path& step) {
  Boxes boxes;
  for (const auto& [name, tensor] : checkpoint::read_manifest(step).tensors) {
    for (const auto& chunk : tensor.chunks) {
      if (chunk.end > chunk.begin) {
        boxes.emplace(chunk.file, name, chunk.offset, chunk.shape);
      }
    }
  }
  return boxes;
}

TEST_F(Reshard, IsWhatTheOtherMeshWouldHaveSaved) {
  const auto from = save("from", 2, 2);
  for (const auto& [dp, tp] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 2}, {1, 3}, {3, 1}, {4, 1}, {2, 3}}) {
    const auto mesh = "dp=" + std::to_string(dp) + ",tp=" + std::to_string(tp);
    SCOPED_TRACE(mesh);
    const auto direct = save("direct_" + mesh, dp, tp);
    const auto done = cut(from, "cut_" + mesh, mesh);
    EXPECT_THAT(done.notes, IsEmpty());
    EXPECT_THAT(checkpoint::verify(done.path), IsEmpty());
    EXPECT_THAT(checkpoint::compare(from, done.path).differences, IsEmpty());
    EXPECT_THAT(checkpoint::compare(direct, done.path).differences, IsEmpty());
    EXPECT_EQ(boxes_of(direct), boxes_of(done.path));
    const auto manifest = checkpoint::read_manifest(done.path);
    EXPECT_EQ(manifest.layout, R"({"buckets": [1, 2]})");
    EXPECT_EQ(
        manifest.tensors.at("model.rows.weight").mesh,
        "dp=" + std::to_string(dp) + " tp=" + std::to_string(tp));
    EXPECT_EQ(manifest.tensors.at("model.rows.weight").placements, "[R, S(0)]");
    EXPECT_EQ(manifest.tensors.at("model.empty").chunks.size(), 1);
  }
}

TEST_F(Reshard, StridedShardsCountTheNewParts) {
  const auto from = save("from", 2, 2);
  const auto done = cut(from, "to", "dp=2,tp=4");
  const auto manifest = checkpoint::read_manifest(done.path);
  EXPECT_EQ(
      manifest.tensors.at("model.strided.weight").placements,
      "[_S(0, 4), S(0)]");
  const auto one = cut(from, "one", "dp=2,tp=1");
  EXPECT_EQ(
      checkpoint::read_manifest(one.path)
          .tensors.at("model.strided.weight")
          .placements,
      "[S(0), S(0)]");
}

TEST_F(Reshard, AnotherDimReplicatesAndCanComeAnywhere) {
  const auto from = save("from", 2, 2);
  const auto done = cut(from, "to", "pp=2,dp=1,cp=2,tp=2");
  EXPECT_EQ(
      checkpoint::read_manifest(done.path)
          .tensors.at("model.both.weight")
          .placements,
      "[R, S(0), R, S(1)]");
  EXPECT_THAT(checkpoint::compare(from, done.path).differences, IsEmpty());
}

TEST_F(Reshard, GivenSizesStayWhereTheyFit) {
  const auto from = save_state("from", 1, 2, [](const mesh::DeviceMesh& mesh) {
    return checkpoint::StateDicts{
        {"model",
         {{"w",
           dtensor::distribute_tensor(
               at::arange(20).view({10, 2}),
               mesh,
               {Replicate(), Shard(0, {3, 7})},
               std::nullopt)}}}};
  });
  const auto kept = cut(from, "kept", "dp=2,tp=2");
  EXPECT_THAT(kept.notes, IsEmpty());
  EXPECT_EQ(
      checkpoint::read_manifest(kept.path).tensors.at("model.w").placements,
      "[R, S(0, [3, 7])]");
  const auto even = cut(from, "even", "dp=1,tp=4");
  ASSERT_EQ(even.notes.size(), 1);
  EXPECT_THAT(
      even.notes[0],
      AllOf(
          HasSubstr("model.w"),
          HasSubstr("S(0, [3, 7])"),
          HasSubstr("[R, S(0)]")));
  EXPECT_EQ(
      checkpoint::read_manifest(even.path).tensors.at("model.w").chunks.size(),
      4);
  EXPECT_THAT(checkpoint::compare(from, even.path).differences, IsEmpty());
}

// Rows of a StridedShard that stands alone are not adjacent: several files.
TEST_F(Reshard, RowsThatAreNotAdjacent) {
  const auto from = save("from", 1, 2);
  auto manifest = checkpoint::read_manifest(from);
  auto& tensor = manifest.tensors.at("model.strided.weight");
  tensor.placements = "[R, _S(0, 2)]";
  fs::remove(from / "manifest.json");
  checkpoint::write_manifest(
      checkpoint::Folder::open(from), manifest, /*sync=*/false);
  const auto done = cut(from, "to", "dp=1,tp=2");
  EXPECT_EQ(
      checkpoint::read_manifest(done.path)
          .tensors.at("model.strided.weight")
          .chunks.size(),
      4);
  EXPECT_TRUE(fs::exists(done.path / "shard-00000-00001.safetensors"));
  EXPECT_THAT(checkpoint::compare(from, done.path).differences, IsEmpty());
  EXPECT_THAT(checkpoint::verify(done.path), IsEmpty());
}

TEST_F(Reshard, TensorsOfNoMeshOrOneThatIsNotUnderstood) {
  SampleOptions options;
  options.grid = {2, 2};
  const auto from =
      write_sample(scratch_.path() / "from", sample_tensors(3), options);
  const auto done = cut(from, "to", "dp=4");
  EXPECT_EQ(done.tensors, 10);
  EXPECT_EQ(done.files, 4); // full tensors, spread over the replicas
  expect_equal(read_sample(done.path), sample_tensors(3));

  auto manifest = checkpoint::read_manifest(from);
  manifest.tensors.at("model.embed.weight").placements = "[Nested(1)]";
  manifest.tensors.at("model.embed.weight").mesh = "dp=2";
  fs::remove(from / "manifest.json");
  checkpoint::write_manifest(
      checkpoint::Folder::open(from), manifest, /*sync=*/false);
  const auto other = cut(from, "other", "dp=2");
  ASSERT_EQ(other.notes.size(), 1);
  EXPECT_THAT(
      other.notes[0],
      AllOf(HasSubstr("model.embed.weight"), HasSubstr("[Nested(1)]")));
  expect_equal(read_sample(other.path), sample_tensors(3));
}

TEST_F(Reshard, MeshesThatDoNotNameTheTensorsDims) {
  const auto from = save("from", 2, 2);
  EXPECT_THAT(
      refusal<mesh::UsageError>(from, "to", "dp=4"),
      AllOf(
          HasSubstr("dp=2 tp=2"),
          HasSubstr("lacks the dim tp"),
          HasSubstr("dp=N,tp=N")));
  EXPECT_THAT(
      refusal<mesh::UsageError>(from, "to", "tp=2,dp=2"),
      HasSubstr("another place for tp"));
  EXPECT_THAT(
      refusal<mesh::UsageError>(from, "to", "dp=65537,tp=1"),
      HasSubstr("65536"));
  EXPECT_THAT(
      refusal<mesh::UsageError>(from, "to", "dp=4294967296,tp=4294967296"),
      HasSubstr("65536"));
  EXPECT_FALSE(fs::exists(scratch_.path() / "to"));
}

TEST_F(Reshard, NothingIsOverwrittenOrAddedToACheckpoint) {
  const auto from = save("from", 2, 1);
  EXPECT_THAT(
      refusal<mesh::UsageError>(from, "from", "dp=1,tp=1"),
      AllOf(HasSubstr("step-7"), HasSubstr("already exists")));
  EXPECT_THAT(
      refusal<mesh::UsageError>(from, "from/step-7", "dp=1,tp=1"),
      HasSubstr("is a checkpoint"));
  EXPECT_THAT(
      refusal<mesh::UsageError>(scratch_.path() / "no", "to", "dp=1,tp=1"),
      HasSubstr("no"));
  const checkpoint::StoreLock lock(scratch_.path() / "to");
  EXPECT_THAT(
      refusal<mesh::UsageError>(from, "to", "dp=1,tp=1"), HasSubstr("process"));
}

TEST_F(Reshard, DamageIsNamedAndNothingStays) {
  const auto from = save("from", 2, 1);
  const auto file = from / "shard-00001-00000.safetensors";
  auto bytes = read_file(file);
  bytes.back() ^= 1;
  write_file(file, bytes);
  EXPECT_THAT(
      refusal<checkpoint::CheckpointError>(from, "to", "dp=1,tp=1"),
      AllOf(HasSubstr(file.string()), HasSubstr("tensor"), HasSubstr("byte")));
  EXPECT_THAT(checkpoint::list_steps(scratch_.path() / "to"), IsEmpty());
  EXPECT_EQ(checkpoint::remove_temporaries(scratch_.path() / "to"), 0);
}

TEST_F(Reshard, KeyIsAskedForAndPassedOn) {
  const auto from = save("from", 1, 1);
  checkpoint::ReshardOptions options;
  options.mesh = {{"dp", 2}, {"tp", 1}};
  options.fsync = false;
  options.hmac_key = "secret";
  const auto to = scratch_.path() / "to";
  message_of_thrown<checkpoint::CheckpointError>(
      [&] { reshard(from, to, options); }); // it was not saved with a key
  auto signed_manifest = checkpoint::read_manifest(from);
  options.hmac_key.clear();
  options.sha256 = true;
  const auto hashed = reshard(from, to, options);
  EXPECT_FALSE(checkpoint::read_manifest(hashed.path)
                   .tensors.at("model.ids")
                   .chunks[0]
                   .piece_sha256.empty());
  // What has every SHA-256 can be signed.
  signed_manifest = checkpoint::read_manifest(hashed.path);
  fs::remove(hashed.path / "manifest.json");
  checkpoint::write_manifest(
      checkpoint::Folder::open(hashed.path), signed_manifest, false, "secret");
  options.hmac_key = "secret";
  const auto again = reshard(hashed.path, scratch_.path() / "again", options);
  EXPECT_THAT(checkpoint::verify(again.path, "secret"), IsEmpty());
  EXPECT_THAT(checkpoint::verify(again.path, "other"), ::testing::SizeIs(1));
}

TEST_F(Reshard, ProgressReachesTheTotal) {
  const auto from = save("from", 2, 2);
  checkpoint::ReshardOptions options;
  options.mesh = {{"dp", 1}, {"tp", 1}};
  options.fsync = false;
  int64_t last = 0;
  int64_t all = 0;
  options.progress = [&](int64_t done, int64_t total, std::string_view what) {
    EXPECT_GT(done, last);
    EXPECT_THAT(std::string(what), HasSubstr(".safetensors"));
    last = done;
    all = total;
  };
  reshard(from, scratch_.path() / "to", options);
  int64_t bytes = 0;
  for (const auto& tensor : tensors_) {
    bytes += static_cast<int64_t>(tensor.values.nbytes());
  }
  EXPECT_EQ(all, bytes);
  EXPECT_EQ(last, bytes);
}

} // namespace
} // namespace weft::test
