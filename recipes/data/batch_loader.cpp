#include "recipes/data/batch_loader.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "mesh/error.h"
#include "recipes/config/recipe.h"
#include "recipes/data/digit_images.h"
#include "recipes/data/text_dataset.h"

namespace weft::recipes {
namespace {

std::unique_ptr<Dataset> open_text(const Recipe& recipe) {
  TextCorpus corpus(recipe.data.paths, place_of(recipe, "data.paths"));
  const SampleOrder order(
      corpus.size(),
      recipe.data.sequence_length,
      static_cast<uint64_t>(recipe.seed),
      place_of(recipe, "data.sequence_length"));
  return std::make_unique<TextDataset>(std::move(corpus), order);
}

std::unique_ptr<Dataset> open_digits(const Recipe& recipe) {
  return std::make_unique<DigitImages>(
      recipe.data.paths,
      static_cast<uint64_t>(recipe.seed),
      place_of(recipe, "data.paths"));
}

} // namespace

BatchLoader::BatchLoader(std::unique_ptr<Dataset> data, BatchShape shape)
    : data_(std::move(data)), shape_(shape) {
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
  return {
      recipe.data.type == "digits" ? open_digits(recipe) : open_text(recipe),
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

std::vector<int64_t> BatchLoader::samples_from(int64_t first) const {
  std::vector<int64_t> samples(static_cast<size_t>(shape_.micro_batch_size));
  std::iota(samples.begin(), samples.end(), first);
  return samples;
}

Batch BatchLoader::train(int64_t next_sample, int64_t accumulation) {
  const int64_t first = first_sample(accumulation);
  Batch batch = data_->train(samples_from(next_sample + first));
  batch.first_sample = first;
  return batch;
}

Batch BatchLoader::heldout(int64_t batch_index, int64_t accumulation) {
  const int64_t first = first_sample(accumulation);
  Batch batch = data_->heldout(
      samples_from(batch_index * shape_.global_batch_size + first));
  batch.first_sample = first;
  return batch;
}

int64_t BatchLoader::num_heldout_batches(int64_t wanted) const {
  const int64_t full = data_->num_heldout_samples() / shape_.global_batch_size;
  return std::min(wanted, std::max<int64_t>(full, 1));
}

} // namespace weft::recipes
