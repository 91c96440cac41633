// Files written from bytes that come one after the other.

#include "checkpoint/tensors/tensor_stream.h"

#include <functional>
#include <map>
#include <numeric>
#include <span>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/sample.h"
#include "tests/support/temp_folder.h"

namespace weft::test {
namespace {

TEST(Runs, VisitEveryElementOnceInOrder) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {}, {1}, {7}, {3, 5}, {2, 3, 4}, {4, 1, 5}, {1, 1, 9}, {2, 0, 3}}) {
    for (const int64_t most : {1, 4, 8, 20, 1000}) {
      std::vector<int64_t> seen;
      checkpoint::for_each_run(
          shape,
          4,
          most,
          [&](const std::vector<int64_t>& offset,
              const std::vector<int64_t>& box) {
            int64_t first = 0;
            int64_t count = 1;
            for (size_t d = 0; d < shape.size(); ++d) {
              first = first * shape[d] + offset[d];
              count *= box[d];
            }
            EXPECT_TRUE(count * 4 <= most || count == 1);
            for (int64_t i = 0; i < count; ++i) {
              seen.push_back(first + i);
            }
          });
      std::vector<int64_t> all(static_cast<size_t>(std::accumulate(
          shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
      std::iota(all.begin(), all.end(), int64_t{0});
      EXPECT_EQ(seen, all) << ::testing::PrintToString(shape) << " " << most;
    }
  }
}

// However the bytes come, the file is that of write_tensor_file().
TEST(TensorStream, WritesTheSameFile) {
  const test::TempFolder scratch;
  const auto folder = checkpoint::Folder::open(scratch.path());
  std::vector<checkpoint::FileTensor> whole;
  std::vector<checkpoint::StreamedTensor> streamed;
  for (const auto& [name, tensor] : sample_tensors(5)) {
    const auto shape = tensor.sizes().vec();
    const std::vector<int64_t> origin(shape.size(), 0);
    whole.push_back({name, origin, shape, tensor});
    streamed.push_back({name, tensor.scalar_type(), shape, origin, shape});
  }
  checkpoint::WriteOptions options;
  options.piece_bytes = 4096;
  options.fsync = false;
  options.sha256 = true;
  const auto wanted = checkpoint::write_tensor_file(
      folder, "whole.safetensors", whole, options);
  for (const size_t step : {1, 7, 4096, 1 << 20}) {
    const auto name = std::to_string(step) + ".safetensors";
    checkpoint::TensorStream stream(folder, name, streamed, options);
    for (const size_t i : stream.order()) {
      const auto& data = whole[i].data;
      const std::span bytes(
          static_cast<const std::byte*>(data.const_data_ptr()), data.nbytes());
      for (size_t at = 0; at < bytes.size(); at += step) {
        stream.append(bytes.subspan(at, std::min(step, bytes.size() - at)));
      }
    }
    const auto got = stream.finish();
    EXPECT_EQ(
        read_file(scratch.path() / name),
        read_file(scratch.path() / "whole.safetensors"));
    EXPECT_EQ(got.record.header_hash, wanted.record.header_hash);
    EXPECT_EQ(got.record.header_sha256, wanted.record.header_sha256);
    std::map<std::string, checkpoint::Chunk> chunks(
        got.chunks.begin(), got.chunks.end());
    for (const auto& [key, chunk] : wanted.chunks) {
      EXPECT_EQ(chunks.at(key).begin, chunk.begin) << key;
      EXPECT_EQ(chunks.at(key).piece_hashes, chunk.piece_hashes) << key;
      EXPECT_EQ(chunks.at(key).piece_sha256, chunk.piece_sha256) << key;
    }
  }
}

} // namespace
} // namespace weft::test
