#include "tests/checkpoint/sample.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "checkpoint/store/store.h"
#include "checkpoint/tensors/tensor_file.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::Chunk;
using checkpoint::FileTensor;

// Any bits are values; a bool has only two.
at::Tensor random_tensor(
    std::vector<int64_t> shape,
    at::ScalarType dtype,
    std::mt19937_64& rng) {
  auto tensor = at::empty(shape, dtype);
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) {
    bytes[i] = static_cast<unsigned char>(rng());
    if (dtype == at::kBool) {
      bytes[i] &= 1U;
    }
  }
  return tensor;
}

struct Range {
  int64_t begin;
  int64_t size;
};

// As at::chunk cuts; later parts can be shorter or empty.
Range part(int64_t size, int64_t parts, int64_t index) {
  const auto each = (size + parts - 1) / parts;
  const auto begin = std::min(index * each, size);
  return {begin, std::min(each, size - begin)};
}

// The piece of `whole` that rank (row, column) of the grid writes.
bool piece_of(
    const at::Tensor& whole,
    const Grid& grid,
    int64_t row,
    int64_t column,
    FileTensor& piece) {
  const bool is_first = row == 0 && column == 0;
  piece.global_shape = whole.sizes().vec();
  piece.offset.assign(piece.global_shape.size(), 0);
  piece.data = whole;
  if (whole.numel() == 0 || whole.dim() == 0) {
    return is_first;
  }
  const auto rows = part(whole.size(0), grid.rows, row);
  piece.offset[0] = rows.begin;
  piece.data = whole.narrow(0, rows.begin, rows.size);
  if (whole.dim() == 1) {
    piece.data = piece.data.contiguous();
    return column == 0 && rows.size > 0;
  }
  const auto columns = part(whole.size(1), grid.columns, column);
  piece.offset[1] = columns.begin;
  piece.data = piece.data.narrow(1, columns.begin, columns.size).contiguous();
  return rows.size > 0 && columns.size > 0;
}

} // namespace

Tensors sample_tensors(uint64_t seed) {
  std::mt19937_64 rng(seed);
  Tensors tensors;
  const auto add = [&](const std::string& name,
                       std::vector<int64_t> shape,
                       at::ScalarType dtype) {
    tensors[name] = random_tensor(std::move(shape), dtype, rng);
  };
  add("model.embed.weight", {96, 40}, at::kFloat);
  add("model.uneven.weight", {7, 5}, at::kFloat);
  add("model.norm.weight", {33}, at::kBFloat16);
  add("model.mask", {9, 3}, at::kBool);
  add("model.scalar", {}, at::kFloat);
  add("model.steps", {}, at::kLong);
  add("model.empty", {0, 4}, at::kFloat);
  add("model.cube", {5, 6, 7}, at::kDouble);
  add("optimizer.state.embed.weight.exp_avg", {96, 40}, at::kFloat);
  add("optimizer.state.bytes", {11}, at::kByte);
  return tensors;
}

at::Tensor sample_matrix(uint64_t seed, int64_t rows, int64_t columns) {
  std::mt19937_64 rng(seed);
  return random_tensor({rows, columns}, at::kFloat, rng);
}

fs::path write_sample(
    const fs::path& checkpoints,
    const Tensors& tensors,
    const SampleOptions& options) {
  const auto temporary = checkpoint::begin_step(checkpoints, options.step);
  checkpoint::Manifest manifest;
  checkpoint::stamp(manifest);
  manifest.step = options.step;
  manifest.piece_bytes = options.piece_bytes;
  manifest.state = options.state;
  for (const auto& [name, tensor] : tensors) {
    manifest.tensors[name] = {
        tensor.scalar_type(), tensor.sizes().vec(), "", "", {}};
  }
  const auto folder = checkpoint::Folder::open(temporary);
  for (int64_t row = 0; row < options.grid.rows; ++row) {
    for (int64_t column = 0; column < options.grid.columns; ++column) {
      std::vector<FileTensor> pieces;
      for (const auto& [name, tensor] : tensors) {
        FileTensor piece{name, {}, {}, {}};
        if (piece_of(tensor, options.grid, row, column, piece)) {
          pieces.push_back(piece);
        }
      }
      if (pieces.empty()) {
        continue;
      }
      const auto written = checkpoint::write_tensor_file(
          folder,
          checkpoint::tensor_file_name(row * options.grid.columns + column, 0),
          pieces,
          {options.step, options.piece_bytes, options.fsync, options.sha256});
      manifest.files[written.name] = written.record;
      for (const auto& [key, chunk] : written.chunks) {
        manifest.tensors.at(key).chunks.push_back(chunk);
      }
    }
  }
  checkpoint::write_manifest(folder, manifest, options.fsync, options.hmac_key);
  checkpoint::commit_step(checkpoints, temporary, options.step, options.fsync);
  return checkpoint::step_path(checkpoints, options.step);
}

Tensors read_sample(const fs::path& step_folder, const std::string& hmac_key) {
  const auto folder = checkpoint::Folder::open(step_folder);
  const auto manifest = checkpoint::read_manifest(folder, hmac_key);
  checkpoint::ChunkReader reader(folder, manifest);
  Tensors tensors;
  for (const auto& [name, record] : manifest.tensors) {
    const auto tensor = at::empty(record.shape, record.dtype);
    const std::vector<int64_t> origin(record.shape.size(), 0);
    reader.read_box(
        name,
        origin,
        record.shape,
        {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    tensors[name] = tensor;
  }
  return tensors;
}

void expect_equal(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, left] : a) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(b.contains(name));
    const auto& right = b.at(name);
    ASSERT_EQ(left.scalar_type(), right.scalar_type());
    ASSERT_EQ(left.sizes(), right.sizes());
    // Bits: random floats have NaNs, which no comparison of values finds equal.
    EXPECT_TRUE(
        left.nbytes() == 0 ||
        std::memcmp(
            left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
  }
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  ASSERT_TRUE(file) << path;
}

} // namespace weft::test
