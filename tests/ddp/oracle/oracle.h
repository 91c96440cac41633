#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "data_parallel/comm_hooks/comm_hook.h"

namespace weft::test {

/// What comm_hooks.py stored: outputs of PyTorch's hooks and averagers.
/// `world` ranks, one case; rank by rank where ranks differ.
inline nlohmann::json
stored_output(int64_t world, const std::string& name, int64_t rank) {
  std::ifstream file(WEFT_TEST_DDP_FOLDER "/oracle/comm_hooks.json");
  const auto all = nlohmann::json::parse(file);
  const auto& output = all.at("outputs").at(std::to_string(world)).at(name);
  return output.is_array() ? output.at(static_cast<size_t>(rank)) : output;
}

/// Values in (-1, 1) that form matrices of full rank; chirp() of comm_hooks.py.
inline at::Tensor
chirp(at::IntArrayRef sizes, double phase, at::ScalarType dtype) {
  const auto k = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return at::sin(k * k * 0.013 + k * 1.7 + phase).view(sizes).to(dtype);
}

using Shapes = std::vector<std::vector<int64_t>>;

/// The gradients in the buckets of comm_hooks.py.
inline std::vector<Shapes> stored_shapes() {
  return {{{8, 6}, {6}, {6, 8}}, {{8, 6}, {5}, {4, 3, 4}}};
}

/// A bucket of gradients of these shapes over `buffer`, row-major.
inline data_parallel::GradBucket make_bucket(
    const at::Tensor& buffer,
    const Shapes& shapes,
    const mesh::Communicator& group,
    size_t index = 0,
    bool is_last = true) {
  data_parallel::GradBucket bucket{
      .index = index,
      .is_last = is_last,
      .buffer = buffer,
      .gradients = {},
      .parameters = {},
      .names = {},
      .group = group};
  int64_t offset = 0;
  for (const auto& shape : shapes) {
    const int64_t numel = c10::multiply_integers(shape);
    bucket.gradients.push_back(buffer.narrow(0, offset, numel).view(shape));
    bucket.parameters.push_back(at::zeros(shape, buffer.options()));
    bucket.names.push_back("layer." + std::to_string(bucket.names.size()));
    offset += numel;
  }
  return bucket;
}

inline int64_t numel_of(const Shapes& shapes) {
  int64_t numel = 0;
  for (const auto& shape : shapes) {
    numel += c10::multiply_integers(shape);
  }
  return numel;
}

/// Runs a hook on a bucket and gives its result, which is in the buffer.
inline at::Tensor reduce(
    data_parallel::CommHook& hook,
    const data_parallel::GradBucket& bucket) {
  const auto result = hook.run(bucket).wait();
  EXPECT_EQ(result.sizes(), bucket.buffer.sizes());
  EXPECT_EQ(result.scalar_type(), bucket.buffer.scalar_type());
  EXPECT_TRUE(result.is_alias_of(bucket.buffer));
  return result;
}

/// Returns a hook's results of iteration `iteration` of comm_hooks.py, one per
/// bucket.
inline std::vector<at::Tensor> reduce_iteration(
    data_parallel::CommHook& hook,
    int64_t iteration,
    const mesh::Communicator& group,
    at::ScalarType dtype) {
  const auto shapes = stored_shapes();
  std::vector<data_parallel::GradBucket> buckets;
  std::vector<data_parallel::BucketFuture> futures;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const double phase = 0.3 + 0.37 * static_cast<double>(iteration) +
                         0.91 * static_cast<double>(group.rank()) +
                         0.53 * static_cast<double>(i);
    buckets.push_back(make_bucket(
        chirp({numel_of(shapes[i])}, phase, dtype),
        shapes[i],
        group,
        i,
        i + 1 == shapes.size()));
    futures.push_back(hook.run(buckets.back()));
  }
  // As in a backward: all are started before the first is waited for.
  std::vector<at::Tensor> results;
  for (auto& future : futures) {
    results.push_back(future.wait().clone());
  }
  return results;
}

inline at::Tensor to_tensor(const nlohmann::json& numbers) {
  return at::tensor(numbers.get<std::vector<double>>(), at::kDouble);
}

/// The greatest difference of a result from stored numbers.
inline double difference(
    const at::Tensor& result,
    const nlohmann::json& stored) {
  const auto expected = to_tensor(stored);
  EXPECT_EQ(result.numel(), expected.numel());
  return (result.to(at::kDouble).view({-1}) - expected)
      .abs()
      .max()
      .item<double>();
}

} // namespace weft::test
