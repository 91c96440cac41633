#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/format/manifest.h"

namespace weft::test {

using Tensors = std::map<std::string, at::Tensor>;

/// How many ranks a sample's tensors are split for: rows x columns, unevenly
/// where they do not divide.
struct Grid {
  int64_t rows = 1;
  int64_t columns = 1;
};

/// Tensors of every kind that a state has: matrices that divide and that do
/// not, several dtypes, 0-dim, bool, without elements. Equal seeds give equal
/// values.
Tensors sample_tensors(uint64_t seed);

/// float32, any bits. Equal seeds give equal values.
at::Tensor sample_matrix(uint64_t seed, int64_t rows, int64_t columns);

struct SampleOptions {
  int64_t step = 20;
  Grid grid;
  /// Small, so that small tensors have several.
  int64_t piece_bytes = 4096;
  std::string state = R"({"cursor": {"sample": 320}, "seed": 42})";
  bool fsync = false;
  bool sha256 = false;
  std::string hmac_key = {};
};

/// Writes and commits `tensors` as the ranks of `grid` would, each its own
/// chunks; what cannot be cut is rank 0's. Returns the step folder.
std::filesystem::path write_sample(
    const std::filesystem::path& checkpoints,
    const Tensors& tensors,
    const SampleOptions& options = {});

/// Reads all tensors of a step folder, whole.
Tensors read_sample(
    const std::filesystem::path& step_folder,
    const std::string& hmac_key = {});

/// Same names, dtypes, shapes and bits.
void expect_equal(const Tensors& a, const Tensors& b);

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& bytes);

} // namespace weft::test
