#include "recipes/data/batch_loader.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "mesh/error.h"
#include "recipes/config/recipe.h"

namespace weft::recipes {

BatchLoader::BatchLoader(TextCorpus corpus, SampleOrder order, BatchShape shape)
    : corpus_(std::move(corpus)), order_(order), shape_(shape) {
  const mesh::ErrorContext where{fmt::format(
      "dp={}, micro_batch_size={}", shape.dp, shape.micro_batch_size)};
  WEFT_CHECK(
      shape.dp > 0 && shape.micro_batch_size > 0 && shape.global_batch_size > 0,
      "batches",
      where,
      "A batch size is not positive.");
  const int64_t left_over =
      shape.global_batch_size % (shape.dp * shape.micro_batch_size);
  WEFT_CHECK_EQ(
      "batches",
      left_over,
      0,
      where,
      "global_batch_size ",
      shape.global_batch_size,
      " must be a multiple of dp * micro_batch_size.");
  WEFT_CHECK(
      shape.dp_rank >= 0 && shape.dp_rank < shape.dp,
      "batches",
      where,
      "dp_rank ",
      shape.dp_rank,
      " is outside of [0, dp).");
}

BatchLoader BatchLoader::open(const Recipe& recipe, int64_t dp_rank) {
  TextCorpus corpus(recipe.data.paths, place_of(recipe, "data.paths"));
  const SampleOrder order(
      corpus.size(),
      recipe.data.sequence_length,
      static_cast<uint64_t>(recipe.seed),
      place_of(recipe, "data.sequence_length"));
  return {
      std::move(corpus),
      order,
      {.global_batch_size = recipe.train.global_batch_size,
       .micro_batch_size = recipe.train.micro_batch_size,
       .dp = recipe.mesh.dp,
       .dp_rank = dp_rank}};
}

int64_t BatchLoader::accumulation_steps() const {
  return shape_.global_batch_size / (shape_.dp * shape_.micro_batch_size);
}

int64_t BatchLoader::first_sample(int64_t accumulation) const {
  return (accumulation * shape_.dp + shape_.dp_rank) * shape_.micro_batch_size;
}

Batch BatchLoader::train(int64_t next_sample, int64_t accumulation) {
  const int64_t first = first_sample(accumulation);
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < shape_.micro_batch_size; ++i) {
    offsets.push_back(order_.train_offset(next_sample + first + i));
  }
  Batch batch = read(offsets);
  batch.first_sample = first;
  return batch;
}

Batch BatchLoader::heldout(int64_t batch_index, int64_t accumulation) {
  const int64_t first = first_sample(accumulation);
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < shape_.micro_batch_size; ++i) {
    offsets.push_back(order_.heldout_offset(
        batch_index * shape_.global_batch_size + first + i));
  }
  Batch batch = read(offsets);
  batch.first_sample = first;
  return batch;
}

int64_t BatchLoader::num_heldout_batches(int64_t wanted) const {
  const int64_t full = order_.num_heldout_samples() / shape_.global_batch_size;
  return std::min(wanted, std::max<int64_t>(full, 1));
}

Batch BatchLoader::read(const std::vector<int64_t>& offsets) {
  const auto batch_size = static_cast<int64_t>(offsets.size());
  const int64_t length = order_.sequence_length();
  Batch batch{
      .tokens = at::empty({batch_size, length}, at::kLong),
      .targets = at::empty({batch_size, length}, at::kLong)};
  std::vector<uint8_t> bytes(static_cast<size_t>(length) + 1);
  auto* tokens = batch.tokens.mutable_data_ptr<int64_t>();
  auto* targets = batch.targets.mutable_data_ptr<int64_t>();
  for (const int64_t offset : offsets) {
    corpus_.read(offset, bytes);
    tokens = std::copy(bytes.begin(), bytes.end() - 1, tokens);
    targets = std::copy(bytes.begin() + 1, bytes.end(), targets);
  }
  return batch;
}

} // namespace weft::recipes
