// Checkpoints that PyTorch wrote (tests/checkpoint/oracle, made by
// bench/peer/checkpoint_exchange.py), and files that nobody should have.

#include "checkpoint/transfer/describe_safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/files/error.h"
#include "checkpoint/load/load.h"
#include "checkpoint/store/store.h"
#include "checkpoint/tensors/tensor_file.h"
#include "checkpoint/transfer/import_tensors.h"
#include "checkpoint/verify.h"
#include "mesh/error/error.h"
#include "tests/checkpoint/sample.h"
#include "tests/checkpoint/transfer/exchange_state.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointError;
using checkpoint::describe_safetensors;
using checkpoint::Folder;
using checkpoint::Manifest;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Shape = std::vector<int64_t>;

const fs::path kOracle = WEFT_ORACLE;

Tensors read_foreign(const Folder& folder, const Manifest& manifest) {
  checkpoint::ChunkReader reader(folder, manifest);
  Tensors tensors;
  for (const auto& [name, record] : manifest.tensors) {
    auto tensor = at::empty(record.shape, record.dtype);
    reader.read_box(
        name,
        Shape(record.shape.size(), 0),
        record.shape,
        {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    tensors[name] = tensor;
  }
  return tensors;
}

struct Source {
  const char* path;
  bool is_consolidated;
};
std::ostream& operator<<(std::ostream& out, const Source& source) {
  return out << fs::path(source.path).stem().string();
}

class WrittenByPyTorch : public ::testing::TestWithParam<Source> {
 protected:
  WrittenByPyTorch()
      : tensors_(exchange_tensors(kOracle)),
        path_(kOracle / GetParam().path),
        folder_(Folder::open(
            fs::is_directory(path_) ? path_ : path_.parent_path())),
        manifest_(
            fs::is_directory(path_)
                ? describe_safetensors(folder_)
                : describe_safetensors(folder_, path_.filename().string())) {
    if (GetParam().is_consolidated) {
      tensors_ = consolidable(std::move(tensors_));
    }
  }

  std::vector<ExchangeTensor> tensors_;
  fs::path path_;
  Folder folder_;
  Manifest manifest_;
};

TEST_P(WrittenByPyTorch, IsReadWhole) {
  EXPECT_TRUE(manifest_.has_no_hashes);
  expect_equal(read_foreign(folder_, manifest_), exchange_values(tensors_));
}

TEST_P(WrittenByPyTorch, LoadsOnMeshes) {
  for (const auto& [dp, tp] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 3}, {2, 2}}) {
    SCOPED_TRACE(testing::Message() << dp << "x" << tp);
    run_ranks(
        static_cast<int>(dp * tp), [&, dp = dp, tp = tp](RankContext& self) {
          const auto mesh = self.mesh({dp, tp}, {"dp", "tp"});
          const auto state = exchange_state(tensors_, mesh, false);
          checkpoint::load(folder_.path(), manifest_, state);
          EXPECT_THAT(
              differing_parts(exchange_state(tensors_, mesh, true), state),
              ::testing::IsEmpty());
        });
  }
}

TEST_P(WrittenByPyTorch, BecomesACheckpoint) {
  const test::TempFolder scratch;
  checkpoint::ImportOptions options;
  options.step = 12;
  options.fsync = false;
  options.max_file_bytes = 200; // several files
  int64_t last = 0;
  options.progress = [&](int64_t done, int64_t total, std::string_view) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, total);
    last = done;
  };
  const auto done = checkpoint::import_tensors(
      folder_, manifest_, scratch.path() / "run", options);
  EXPECT_EQ(done.path, scratch.path() / "run" / "step-12");
  EXPECT_EQ(done.tensors, std::ssize(tensors_));
  EXPECT_GT(done.files, 1);
  EXPECT_THAT(checkpoint::verify(done.path), ::testing::IsEmpty());
  expect_equal(read_sample(done.path), exchange_values(tensors_));
}

INSTANTIATE_TEST_SUITE_P(
    Oracle,
    WrittenByPyTorch,
    ::testing::Values(
        Source{"torch_sharded", false},
        Source{"torch_consolidated", true},
        Source{"torch_rank0", false},
        Source{"single.safetensors", false}),
    ::testing::PrintToStringParamName());

// A safetensors file: tensors of uint8 with shape and offset; no offsets, no
// DCP_SHARDING_INFO.
struct Piece {
  std::string name;
  Shape shape;
  Shape offset;
};

std::string numbers(const Shape& shape) {
  std::string text;
  for (const auto number : shape) {
    text += (text.empty() ? "" : ",") + std::to_string(number);
  }
  return "[" + text + "]";
}

std::string file_of(
    const std::vector<Piece>& pieces,
    bool is_placed = true,
    const std::string& dtype = "U8") {
  std::string info;
  std::string tensors;
  int64_t position = 0;
  for (const auto& [name, shape, offset] : pieces) {
    int64_t count = 1;
    for (const auto size : shape) {
      count *= size;
    }
    info += (info.empty() ? "{" : ",") + std::string("\\\"") + name +
            R"(\":{\"saved_offsets\":)" + numbers(offset) + "}";
    tensors += ",\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" +
               numbers(shape) + R"(,"data_offsets":[)" +
               std::to_string(position) + "," +
               std::to_string(position + count) + "]}";
    position += count;
  }
  auto json = std::string(R"({"__metadata__":{"format":"pt")") +
              (is_placed ? R"(,"DCP_SHARDING_INFO":")" + info + "}\"" : "") +
              "}" + tensors + "}";
  const uint64_t length = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  bytes += json;
  for (int64_t i = 0; i < position; ++i) {
    bytes += static_cast<char>(i + 1);
  }
  return bytes;
}

class SafetensorsManifest : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& bytes) const {
    write_file(scratch_.path() / name, bytes);
  }
  Folder folder() const { return Folder::open(scratch_.path()); }
  Manifest describe() const { return describe_safetensors(folder()); }
  std::string damage() const {
    return message_of_thrown<CheckpointError>([&] { describe(); });
  }
  std::string misuse() const {
    return message_of_thrown<mesh::UsageError>([&] { describe(); });
  }

  test::TempFolder scratch_;
};

constexpr const char* kFirst = "shard-00001-model-00001-of-00001.safetensors";
constexpr const char* kSecond = "shard-00002-model-00001-of-00001.safetensors";
constexpr const char* kThird = "shard-00003-model-00001-of-00001.safetensors";

TEST_F(SafetensorsManifest, HullOfThePiecesIsTheWhole) {
  put(kFirst, file_of({{"a", {2, 3}, {0, 0}}, {"b", {4}, {0}}}));
  put(kSecond, file_of({{"a", {1, 3}, {2, 0}}}));
  const auto manifest = describe();
  EXPECT_EQ(manifest.tensors.at("a").shape, (Shape{3, 3}));
  EXPECT_EQ(manifest.tensors.at("a").chunks.size(), 2);
  EXPECT_EQ(manifest.files.size(), 2);
  const auto tensors = read_foreign(folder(), manifest);
  // Six bytes of the first file, then three of the second one.
  EXPECT_EQ(tensors.at("a")[1][2].item<int>(), 6);
  EXPECT_EQ(tensors.at("a")[2][0].item<int>(), 1);
}

TEST_F(SafetensorsManifest, CopiesOfOnePlaceAreReadOnce) {
  put(kFirst, file_of({{"a", {2}, {0}}}));
  put(kSecond, file_of({{"a", {2}, {0}}, {"a2", {1}, {0}}}));
  put(kThird, file_of({{"a", {2}, {2}}}));
  const auto manifest = describe();
  EXPECT_EQ(manifest.tensors.at("a").shape, (Shape{4}));
  ASSERT_EQ(manifest.tensors.at("a").chunks.size(), 2);
  EXPECT_EQ(manifest.tensors.at("a").chunks[0].file, kFirst);
  EXPECT_EQ(read_foreign(folder(), manifest).at("a2").item<int>(), 3);
}

TEST_F(SafetensorsManifest, EmptyPiecesAreLeftOut) {
  put(kFirst, file_of({{"a", {1, 2}, {0, 0}}, {"none", {0, 2}, {0, 0}}}));
  put(kSecond, file_of({{"a", {0, 2}, {1, 0}}}));
  const auto manifest = describe();
  EXPECT_EQ(manifest.tensors.at("a").shape, (Shape{1, 2}));
  EXPECT_EQ(manifest.tensors.at("a").chunks.size(), 1);
  EXPECT_EQ(manifest.tensors.at("none").shape, (Shape{0, 2}));
}

TEST_F(SafetensorsManifest, HoleNamesTensorAndElement) {
  put(kFirst, file_of({{"a", {2, 2}, {0, 0}}}));
  put(kSecond, file_of({{"a", {1, 2}, {3, 0}}}));
  EXPECT_THAT(
      damage(),
      AllOf(
          HasSubstr("tensor \"a\""),
          HasSubstr("element [2, 0] of [4, 2] is in 0 chunks"),
          HasSubstr("Check that no file is missing")));
}

TEST_F(SafetensorsManifest, OverlapNamesTensorAndElement) {
  put(kFirst, file_of({{"a", {2, 2}, {0, 0}}}));
  put(kSecond, file_of({{"a", {2, 2}, {1, 0}}}));
  EXPECT_THAT(damage(), HasSubstr("element [1, 0] of [3, 2] is in 2 chunks"));
}

TEST_F(SafetensorsManifest, PiecesOfDifferentTensors) {
  put(kFirst, file_of({{"a", {2}, {0}}}));
  put(kSecond, file_of({{"a", {2}, {2}}}, true, "I8"));
  EXPECT_THAT(
      damage(),
      AllOf(
          HasSubstr("differ in dtype, number of dims or global shape"),
          HasSubstr("uint8 [2] at [0]"),
          HasSubstr("int8 [2] at [2]"),
          HasSubstr(kSecond)));
  put(kSecond, file_of({{"a", {2, 1}, {2, 0}}}));
  EXPECT_THAT(
      damage(), HasSubstr("differ in dtype, number of dims or global shape"));
}

TEST_F(SafetensorsManifest, OneNameInTwoFilesThatSayNoPlace) {
  put("one.safetensors", file_of({{"a", {2}, {}}}, false));
  put("two.safetensors", file_of({{"a", {2}, {}}}, false));
  EXPECT_THAT(damage(), HasSubstr("do not say which part"));
}

TEST_F(SafetensorsManifest, PlacesThatOverflowAreRefused) {
  constexpr auto kFar = std::numeric_limits<int64_t>::max();
  put(kFirst, file_of({{"a", {2}, {0}}}));
  put(kSecond, file_of({{"a", {2}, {kFar}}}));
  EXPECT_THAT(damage(), HasSubstr("out of range"));
  put(kSecond, file_of({{"a", {2}, {int64_t{1} << 61}}}));
  EXPECT_THAT(damage(), HasSubstr("too large"));
  // A hull of any size costs nothing.
  put(kSecond, file_of({{"a", {2}, {int64_t{1} << 60}}}));
  EXPECT_THAT(damage(), HasSubstr("element [2]"));
}

TEST_F(SafetensorsManifest, BrokenFilesAreNamed) {
  put(kFirst, file_of({{"a", {2}, {0}}}));
  const auto good = file_of({{"a", {2}, {2}}});
  for (size_t size = 0; size < good.size(); ++size) {
    put(kSecond, good.substr(0, size));
    EXPECT_THAT(damage(), HasSubstr(kSecond)) << size;
  }
  put(kSecond, good + "x");
  EXPECT_THAT(damage(), HasSubstr(kSecond));
  auto huge = good;
  std::memset(huge.data(), 255, 8); // a header of 2^64 - 1 bytes
  put(kSecond, huge);
  EXPECT_THAT(damage(), AllOf(HasSubstr(kSecond), HasSubstr("byte 0")));
}

TEST_F(SafetensorsManifest, FolderWithoutFilesSaysWhy) {
  EXPECT_THAT(misuse(), HasSubstr("the folder has no .safetensors file"));
  put(".metadata", "pickle");
  EXPECT_THAT(
      misuse(),
      AllOf(HasSubstr("pickled"), HasSubstr("HuggingFaceStorageWriter")));
}

TEST_F(SafetensorsManifest, IndexNamesFilesThatMustBeThere) {
  const auto index = [](const std::string& file) {
    return R"({"weight_map": {"a": ")" + file + "\"}}";
  };
  put("model.safetensors.index.json", index("one.safetensors"));
  EXPECT_THAT(
      damage(),
      AllOf(HasSubstr("index.json"), HasSubstr("\"one.safetensors\"")));
  put("one.safetensors", file_of({{"b", {2}, {}}}, false));
  EXPECT_THAT(
      damage(),
      HasSubstr("tensor \"a\" is in file one.safetensors, but the file does "
                "not have it"));
  put("one.safetensors", file_of({{"a", {2}, {}}}, false));
  // Files beside those of the index are others'.
  put("two.safetensors", file_of({{"a", {2}, {}}}, false));
  EXPECT_EQ(describe().files.size(), 1);
  put("model.safetensors.index.json", index("../one.safetensors"));
  EXPECT_THAT(damage(), HasSubstr("expected the plain name of a file"));
}

TEST_F(SafetensorsManifest, NumberedFilesMustAllBeThere) {
  put("model-00001-of-00002.safetensors", file_of({{"a", {2}, {}}}, false));
  EXPECT_THAT(
      damage(), HasSubstr("but model-00002-of-00002.safetensors does not"));
  put("model-00002-of-00002.safetensors", file_of({{"b", {2}, {}}}, false));
  EXPECT_EQ(describe().tensors.size(), 2);
}

TEST_F(SafetensorsManifest, LinksAreNotFollowed) {
  put("real", file_of({{"a", {2}, {}}}, false));
  fs::create_symlink("real", scratch_.path() / "a.safetensors");
  EXPECT_THAT(damage(), HasSubstr("a.safetensors"));
}

TEST_F(SafetensorsManifest, OneFileOfManyRanksIsNoWhole) {
  put(kFirst, file_of({{"a", {2}, {0}}}));
  EXPECT_EQ(describe_safetensors(folder(), kFirst).tensors.size(), 1);
  put(kSecond, file_of({{"a", {2}, {2}}}));
  EXPECT_THAT(
      message_of_thrown<mesh::UsageError>(
          [&] { describe_safetensors(folder(), kFirst); }),
      HasSubstr("one of 2 shards"));
}

TEST_F(SafetensorsManifest, FilesThatChangeAfterTheyWereDescribed) {
  put("a.safetensors", file_of({{"a", {2}, {}}}, false));
  const auto manifest = describe();
  put("a.safetensors", file_of({{"a", {1}, {}}}, false));
  EXPECT_THAT(
      message_of_thrown<CheckpointError>(
          [&] { read_foreign(folder(), manifest); }),
      HasSubstr("a.safetensors"));
}

// Weft's own files say the whole shape, so a lost last piece shows.
TEST_F(SafetensorsManifest, OwnFilesWithoutTheirManifest) {
  SampleOptions options;
  options.grid = {2, 2};
  const auto step =
      write_sample(scratch_.path() / "run", sample_tensors(4), options);
  fs::remove(step / "manifest.json");
  const auto opened = Folder::open(step);
  expect_equal(
      read_foreign(opened, describe_safetensors(opened)), sample_tensors(4));
  fs::remove(step / "shard-00003-00000.safetensors");
  EXPECT_THAT(
      message_of_thrown<CheckpointError>([&] { describe_safetensors(opened); }),
      HasSubstr("is in 0 chunks"));
}

TEST_F(SafetensorsManifest, ImportRefusesKeysWithoutAPartAndOnesThatCollide) {
  put("a.safetensors", file_of({{"a", {2}, {}}, {"b", {1}, {}}}, false));
  const auto opened = folder();
  const auto manifest = describe_safetensors(opened);
  const auto import = [&](const std::string& front, const std::string& back) {
    checkpoint::ImportOptions options;
    options.key_of = [&](const std::string& name) {
      return front + (back.empty() ? name : back);
    };
    options.fsync = false;
    return message_of_thrown<mesh::UsageError>([&] {
      checkpoint::import_tensors(
          opened, manifest, scratch_.path() / "run", options);
    });
  };
  EXPECT_THAT(import("", ""), HasSubstr("e.g. to \"model.a\""));
  EXPECT_THAT(
      import("model.", "x"), HasSubstr("would both get the key \"model.x\""));
  EXPECT_FALSE(fs::exists(scratch_.path() / "run"));
}

} // namespace
} // namespace weft::test
