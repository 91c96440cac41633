#pragma once

// Bytes of a file, and samples of them.

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace own {

/// Reads a file as uint8. Shape: [n].
inline at::Tensor read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<uint8_t> bytes(std::istreambuf_iterator<char>(file), {});
  TORCH_CHECK_VALUE(bytes.size() > 1000, path, ": no file, or too short");
  return torch::tensor(bytes);
}

/// Returns the samples [first, first + count), which are the same in every run.
/// Shape: [count, length].
inline at::Tensor
samples(const at::Tensor& text, int64_t first, int64_t count, int64_t length) {
  std::vector<at::Tensor> rows;
  for (int64_t i = first; i < first + count; ++i) {
    const int64_t start = i * 7919 % (text.numel() - length);
    rows.push_back(text.narrow(0, start, length));
  }
  return at::stack(rows).to(at::kLong);
}

} // namespace own
