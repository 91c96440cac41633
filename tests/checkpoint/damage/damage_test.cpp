#include "tests/checkpoint/damage/damaged_step.h"

#include <gtest/gtest.h>

#include "checkpoint/files/error.h"
#include "checkpoint/load/load.h"
#include "checkpoint/store/store.h"
#include "checkpoint/tensors/tensor_file.h"
#include "checkpoint/verify.h"
#include "mesh/error/error.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/temp_folder.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::SampleOptions;

// Two steps of one run, and a third folder to damage.
class Damages : public ::testing::Test {
 protected:
  Damages() {
    SampleOptions options;
    options.grid = {2, 2};
    sound_ = test::write_sample(
        scratch_.path() / "checkpoints", test::sample_tensors(1), options);
    options.step = 30;
    other_ = test::write_sample(
        scratch_.path() / "checkpoints", test::sample_tensors(2), options);
    damaged_ = scratch_.path() / "damaged";
  }

  bool reads() const {
    try {
      test::read_sample(damaged_);
      return true;
    } catch (const CheckpointError&) {
      return false;
    }
  }

  // The same through load(), which must leave its targets alone if it fails.
  bool loads() const {
    StateDicts dicts;
    for (const auto& [key, tensor] : test::sample_tensors(1)) {
      const auto dot = key.find('.');
      dicts[key.substr(0, dot)][key.substr(dot + 1)] = at::zeros_like(tensor);
    }
    bool is_loaded = true;
    try {
      load(damaged_, dicts);
    } catch (const c10::Error&) { // Edited: a tensor of another dtype, say.
      is_loaded = false;
    }
    for (const auto& [key, expected] : test::sample_tensors(1)) {
      const auto dot = key.find('.');
      const auto& tensor = dicts.at(key.substr(0, dot)).at(key.substr(dot + 1));
      // Bit for bit: some are not numbers.
      const auto right = is_loaded ? expected : at::zeros_like(expected);
      EXPECT_TRUE(at::equal(
          tensor.reshape({-1}).view(at::kByte),
          right.reshape({-1}).view(at::kByte)))
          << key;
    }
    return is_loaded;
  }

  test::TempFolder scratch_;
  fs::path sound_;
  fs::path other_;
  fs::path damaged_;
};

TEST_F(Damages, SoundFolderHasNone) {
  test::restore_step(sound_, damaged_);
  EXPECT_TRUE(verify(damaged_).empty());
  EXPECT_TRUE(reads());
  EXPECT_TRUE(loads());
}

TEST_F(Damages, EveryOneOfAThousandIsFound) {
  std::mt19937_64 rng(20);
  for (int i = 0; i < 1000; ++i) {
    test::restore_step(sound_, damaged_);
    const auto damage = test::apply_random_damage(damaged_, other_, rng);
    SCOPED_TRACE(std::to_string(i) + ": " + damage.what);
    EXPECT_FALSE(verify(damaged_).empty());
    EXPECT_EQ(reads(), !damage.is_read);
    EXPECT_EQ(loads(), !damage.is_read);
  }
}

TEST_F(Damages, NamesFileTensorAndOffset) {
  test::restore_step(sound_, damaged_);
  const auto manifest = read_manifest(damaged_);
  const auto& chunk = manifest.tensors.at("model.embed.weight").chunks.at(3);
  ASSERT_GT(chunk.end - chunk.begin, 200);
  auto bytes = test::read_file(damaged_ / chunk.file);
  bytes[static_cast<size_t>(chunk.begin + 100)] ^= 1;
  test::write_file(damaged_ / chunk.file, bytes);

  const auto damages = verify(damaged_);
  ASSERT_EQ(damages.size(), 1);
  EXPECT_EQ(damages[0].file, chunk.file);
  EXPECT_EQ(damages[0].tensor, "model.embed.weight");
  EXPECT_EQ(damages[0].offset, chunk.begin);
}

TEST_F(Damages, AllOfThemAreReported) {
  test::restore_step(sound_, damaged_);
  const auto manifest = read_manifest(damaged_);
  ASSERT_EQ(manifest.files.size(), 4);
  const auto name = [](int i) { return tensor_file_name(i, 0); };
  fs::remove(damaged_ / name(0));
  auto bytes = test::read_file(damaged_ / name(1));
  bytes.back() ^= 1;
  test::write_file(damaged_ / name(1), bytes);
  bytes = test::read_file(damaged_ / name(2));
  bytes[20] ^= 1;
  test::write_file(damaged_ / name(2), bytes);
  test::write_file(
      damaged_ / name(3), test::read_file(damaged_ / name(3)) + "x");
  test::write_file(damaged_ / "extra", "x");

  const auto damages = verify(damaged_);
  std::vector<std::string> files;
  for (const auto& damage : damages) {
    files.push_back(damage.file);
  }
  EXPECT_EQ(
      files,
      (std::vector<std::string>{"extra", name(0), name(1), name(2), name(3)}));
  // The smallest elements come last: 5 of the 9 x 3 bools.
  EXPECT_EQ(damages[2].tensor, "model.mask");
  EXPECT_EQ(damages[2].offset, manifest.files.at(name(1)).bytes - 5);
  EXPECT_EQ(damages[3].offset, 0);
  EXPECT_EQ(damages[4].offset, -1);
}

TEST_F(Damages, NeighbouringPiecesAreOne) {
  SampleOptions options;
  const auto folder = test::write_sample(
      scratch_.path() / "one", test::sample_tensors(1), options);
  const auto manifest = read_manifest(folder);
  const auto& chunk = manifest.tensors.at("model.embed.weight").chunks.at(0);
  ASSERT_EQ(chunk.piece_hashes.size(), 4);
  auto bytes = test::read_file(folder / chunk.file);
  for (const int64_t piece : {1, 2}) {
    bytes[static_cast<size_t>(chunk.begin + piece * options.piece_bytes)] ^= 1;
  }
  test::write_file(folder / chunk.file, bytes);
  const auto damages = verify(folder);
  ASSERT_EQ(damages.size(), 1);
  EXPECT_EQ(damages[0].offset, chunk.begin + options.piece_bytes);
}

TEST_F(Damages, FolderWithoutManifestIsDamaged) {
  fs::create_directory(damaged_);
  EXPECT_EQ(verify(damaged_).size(), 1);
  EXPECT_THROW(read_manifest(damaged_), CheckpointError);
}

TEST_F(Damages, PathThatIsNotThereIsUsage) {
  EXPECT_THROW(verify(scratch_.path() / "none"), mesh::UsageError);
  EXPECT_THROW(read_manifest(scratch_.path() / "none"), mesh::UsageError);
}

} // namespace
} // namespace weft::checkpoint
