#include "checkpoint/tensors/tensor_file.h"

#include <sys/resource.h>

#include <csignal>
#include <system_error>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/files/error.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/tensor_header.h"
#include "checkpoint/store/store.h"
#include "checkpoint/verify.h"
#include "mesh/error/error.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace weft::checkpoint {
namespace {

using test::message_of_thrown;
using test::SampleOptions;
using ::testing::HasSubstr;

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

class TensorFile : public ::testing::Test {
 protected:
  WrittenFile write(
      const std::vector<FileTensor>& tensors,
      const WriteOptions& options = {0, kDefaultPieceBytes, false}) {
    return write_tensor_file(
        Folder::open(scratch_.path()), "a.safetensors", tensors, options);
  }

  static FileTensor whole(const std::string& key, const at::Tensor& data) {
    return {
        key,
        std::vector<int64_t>(static_cast<size_t>(data.dim()), 0),
        data.sizes().vec(),
        data};
  }

  test::TempFolder scratch_;
};

class EveryGrid : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(EveryGrid, ComesBackBitForBit) {
  const test::TempFolder scratch;
  const auto tensors = test::sample_tensors(7);
  SampleOptions options;
  options.grid = {GetParam().first, GetParam().second};
  options.fsync = GetParam().first < 10;
  const auto folder = test::write_sample(scratch.path(), tensors, options);
  test::expect_equal(tensors, test::read_sample(folder));
  EXPECT_TRUE(verify(folder).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Grids,
    EveryGrid,
    ::testing::Values(
        std::pair(1, 1),
        std::pair(2, 2),
        std::pair(3, 1),
        std::pair(1, 4),
        std::pair(4, 3),
        std::pair(40, 8)),
    [](const auto& info) {
      return std::to_string(info.param.first) + "x" +
             std::to_string(info.param.second);
    });

TEST_F(TensorFile, EveryDtypeComesBack) {
  const test::TempFolder scratch;
  test::Tensors tensors;
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    if (from_format_name(plain_name(dtype)) ||
        plain_name(dtype) == "Undefined") {
      continue;
    }
    try {
      format_name(dtype);
    } catch (const mesh::UsageError&) {
      continue;
    }
    auto tensor = at::empty({3, 5}, dtype);
    auto bytes = bytes_of(tensor);
    for (size_t k = 0; k < bytes.size(); ++k) {
      bytes[k] = std::byte(dtype == at::kBool ? k % 2 : k * 7);
    }
    tensors[plain_name(dtype)] = tensor;
  }
  EXPECT_EQ(tensors.size(), 19);
  SampleOptions options;
  options.grid = {2, 2};
  const auto folder = test::write_sample(scratch.path(), tensors, options);
  test::expect_equal(tensors, test::read_sample(folder));
}

TEST_F(TensorFile, UnknownDtypeIsRefused) {
  const auto data = at::zeros({2}, at::kComplexDouble);
  EXPECT_THAT(
      message_of_thrown<mesh::UsageError>([&] { write({whole("w", data)}); }),
      HasSubstr("ComplexDouble"));
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() / "a.safetensors"));
}

TEST_F(TensorFile, ManyTensorsOfManySizes) {
  const test::TempFolder scratch;
  test::Tensors tensors;
  for (int64_t i = 0; i < 1500; ++i) {
    tensors["t" + std::to_string(i)] =
        at::arange(i, at::kInt).bitwise_xor(static_cast<int>(i * 31));
  }
  tensors["large"] = at::arange(3'000'001, at::kInt); // 12 MB
  const auto folder = test::write_sample(
      scratch.path(), tensors, {1, {2, 1}, kDefaultPieceBytes, "{}", false});
  test::expect_equal(tensors, test::read_sample(folder));
}

TEST_F(TensorFile, LayoutIsTheDocumentedOne) {
  const auto written = write(
      {whole("b.small", at::ones({3}, at::kByte)),
       {"a.half", {2}, {4}, at::ones({2}, at::kHalf)},
       whole("c.large", at::ones({1}, at::kDouble))},
      {17, kDefaultPieceBytes, false});
  const auto bytes = test::read_file(scratch_.path() / "a.safetensors");
  ASSERT_EQ(static_cast<int64_t>(bytes.size()), written.record.bytes);
  EXPECT_EQ(written.record.header_bytes % 8, 0);
  EXPECT_EQ(written.record.header_bytes + 8 + 4 + 3, written.record.bytes);

  const auto header = parse_header(
      bytes.substr(0, static_cast<size_t>(written.record.header_bytes)),
      written.record.bytes,
      "it");
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.metadata.at("DCP_VERSION"), "1.0");
  EXPECT_EQ(header.metadata.at("weft_step"), "17");
  const auto& half = header.tensors.at("a.half");
  EXPECT_EQ(half.offset, std::vector<int64_t>{2});
  EXPECT_EQ(half.global_shape, std::vector<int64_t>{4});
  EXPECT_EQ(half.begin, written.record.header_bytes + 8);
  ASSERT_EQ(written.chunks.size(), 3);
  EXPECT_EQ(written.chunks[0].first, "c.large");
  EXPECT_EQ(written.chunks[1].first, "a.half");
  EXPECT_EQ(written.chunks[1].second.begin, half.begin);
  EXPECT_EQ(written.chunks[2].first, "b.small");
}

TEST_F(TensorFile, WrongPiecesAreRefused) {
  const auto two = at::ones({2, 2});
  const std::vector<std::pair<std::vector<FileTensor>, std::string>> cases = {
      {{whole("w", two), whole("w", two)}, "repeated"},
      {{{"w", {1, 0}, {2, 2}, two}}, "not inside"},
      {{{"w", {-1, 0}, {2, 2}, two}}, "not inside"},
      {{{"w", {0}, {2, 2}, two}}, "not inside"},
      {{{"w", {0, 0}, {4}, two}}, "not inside"},
      {{{"w", {0}, {4}, at::empty({0})}}, "is an empty piece"},
      {{{"w", {0, 0}, {2, 2}, at::Tensor()}}, "contiguous"},
      {{{"w", {0, 0}, {3, 2}, at::ones({2, 3}).t()}}, "contiguous"},
      {{whole("", two)}, "no name"},
      {{whole("a\nb", two)}, "control"},
      {{whole("a\xff", two)}, "UTF-8"},
      {{whole("__metadata__", two)}, "__metadata__"},
      {{whole(std::string(513, 'w'), two)}, "513"},
      {{whole("w", at::ones({1, 1, 1, 1, 1, 1, 1, 1, 1}))}, "9 dims"},
  };
  for (const auto& [tensors, text] : cases) {
    SCOPED_TRACE(text);
    EXPECT_THAT(
        message_of_thrown<mesh::UsageError>([&] { write(tensors); }),
        HasSubstr(text));
  }
  write({whole(std::string(512, 'w'), two)});
}

TEST_F(TensorFile, IsNeverOverwritten) {
  write({whole("w", at::ones({2}))});
  const auto before = test::read_file(scratch_.path() / "a.safetensors");
  try {
    write({whole("v", at::ones({3}))});
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::file_exists);
    EXPECT_THAT(error.what(), HasSubstr("a.safetensors"));
  }
  EXPECT_EQ(test::read_file(scratch_.path() / "a.safetensors"), before);
}

TEST_F(TensorFile, NoRoomNamesPathAndReason) {
  const auto data = at::ones({1 << 16}); // 256 KiB
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{1 << 16, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  std::string message;
  std::error_code code;
  try {
    write({whole("w", data)});
  } catch (const std::system_error& error) {
    message = error.what();
    code = error.code();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(code, std::errc::file_too_large);
  EXPECT_THAT(message, HasSubstr("a.safetensors"));
}

class Reader : public TensorFile {
 protected:
  Reader() {
    tensors_["w"] = at::arange(64 * 1024, at::kInt).view({64, 1024}); // 256 KiB
    folder_ = test::write_sample(
        scratch_.path() / "checkpoints", tensors_, {20, {2, 2}, 4096, "{}"});
    manifest_ = read_manifest(folder_);
  }

  test::Tensors tensors_;
  std::filesystem::path folder_;
  Manifest manifest_;
};

TEST_F(Reader, AnyBoxIsTheSameAsASlice) {
  const auto cube = at::arange(5 * 6 * 7).view({5, 6, 7});
  const auto path = test::write_sample(
      scratch_.path() / "cube", {{"c", cube}}, {1, {2, 3}, 4096, "{}"});
  const auto folder = Folder::open(path);
  const auto manifest = read_manifest(folder);
  ChunkReader reader(folder, manifest);
  for (int64_t begin = 0; begin < 5; ++begin) {
    for (int64_t column = 0; column < 6; ++column) {
      for (const int64_t depth : {0, 3}) {
        const std::vector<int64_t> offset = {begin, column, depth};
        const std::vector<int64_t> shape = {5 - begin, 6 - column, 7 - depth};
        const auto expected = cube.narrow(0, begin, shape[0])
                                  .narrow(1, column, shape[1])
                                  .narrow(2, depth, shape[2])
                                  .contiguous();
        const auto got = at::full_like(expected, -1);
        reader.read_box("c", offset, shape, bytes_of(got));
        EXPECT_TRUE(at::equal(got, expected)) << offset << shape;
      }
    }
  }
}

TEST_F(Reader, ReadsOnlyThePiecesItNeeds) {
  const auto folder = Folder::open(folder_);
  ChunkReader reader(folder, manifest_);
  // Rows of 512 ints, two a piece: rows 2 and 3 of the first chunk are one.
  auto rows = at::empty({2, 512}, at::kInt);
  reader.read_box("w", {2, 0}, {2, 512}, bytes_of(rows));
  const auto& chunk = manifest_.tensors.at("w").chunks.at(0);
  const auto header = manifest_.files.at(chunk.file).header_bytes;
  EXPECT_EQ(reader.bytes_read(), header + 4096);
  EXPECT_TRUE(at::equal(rows, tensors_["w"].narrow(0, 2, 2).narrow(1, 0, 512)));

  // Columns across all rows of that chunk: each piece once, though two rows
  // ask for each.
  auto columns = at::empty({32, 8}, at::kInt);
  reader.read_box("w", {0, 100}, {32, 8}, bytes_of(columns));
  EXPECT_EQ(reader.bytes_read(), header + 4096 + 16 * 4096);
}

TEST_F(Reader, BytesOfAChunkInAnyRange) {
  const auto folder = Folder::open(folder_);
  ChunkReader reader(folder, manifest_, 1);
  const auto& chunk = manifest_.tensors.at("w").chunks.at(3);
  const auto expected =
      tensors_["w"].narrow(0, 32, 32).narrow(1, 512, 512).contiguous();
  const auto all = bytes_of(expected);
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 65536},
           {0, 1},
           {65535, 65536},
           {4095, 4097},
           {100, 20000},
           {4096, 8192},
           {500, 500}}) {
    std::vector<std::byte> out(static_cast<size_t>(end - begin));
    reader.read("w", chunk, begin, end, out);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), all.begin() + begin))
        << begin << " " << end;
  }
}

TEST_F(Reader, DamageIsNamedBeforeAnyByteIsUsed) {
  const auto& chunk = manifest_.tensors.at("w").chunks.at(1);
  auto bytes = test::read_file(folder_ / chunk.file);
  bytes[static_cast<size_t>(chunk.begin + 4096 * 3 + 17)] ^= 4;
  test::write_file(folder_ / chunk.file, bytes);
  const auto folder = Folder::open(folder_);
  ChunkReader reader(folder, manifest_);
  auto row = at::empty({1, 512}, at::kInt);
  // The piece before it is valid; the damaged one is not handed out in part.
  reader.read_box("w", {5, 512}, {1, 512}, bytes_of(row));
  const auto message = message_of_thrown<CheckpointError>([&] {
    reader.read_box("w", {7, 512}, {1, 4}, bytes_of(row).first(16));
  });
  EXPECT_THAT(message, HasSubstr((folder_ / chunk.file).string()));
  EXPECT_THAT(message, HasSubstr("\"w\""));
  EXPECT_THAT(
      message, HasSubstr("byte " + std::to_string(chunk.begin + 4096 * 3)));
}

TEST_F(Reader, UnknownTensorIsDamage) {
  const auto folder = Folder::open(folder_);
  ChunkReader reader(folder, manifest_);
  EXPECT_THROW(reader.read_box("v", {}, {}, {}), CheckpointError);
}

} // namespace
} // namespace weft::checkpoint
