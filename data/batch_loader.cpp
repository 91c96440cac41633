#include "data/batch_loader.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/recipe.h"
#include "data/digit_images.h"
#include "data/text_dataset.h"
#include "data/token_source.h"
#include "mesh/error/error.h"
#include "models/registry.h"
#include "tokenizers/tokenizer.h"

namespace weft::data {
namespace {

std::unique_ptr<Dataset> sample(
    const config::Recipe& recipe,
    std::unique_ptr<TokenSource> tokens) {
  const SampleOrder order(
      tokens->size(),
      recipe.data.sequence_length,
      static_cast<uint64_t>(recipe.seed),
      config::place_of(recipe, "data.sequence_length"));
  return std::make_unique<TextDataset>(std::move(tokens), order);
}

std::unique_ptr<Dataset> open_text(const config::Recipe& recipe) {
  if (recipe.data.tokenizer != "byte") {
    config::refuse(
        recipe,
        "data.tokenizer",
        fmt::format(
            "training reads text files only with tokenizer byte. Tokenize them "
            "first: run `weft tokenize {} {} -o {}.bin`, and set data.type: "
            "tokens and data.paths: [{}.bin]",
            recipe.data.tokenizer,
            fmt::join(recipe.data.paths, " "),
            recipe.name,
            recipe.name));
  }
  return sample(
      recipe,
      std::make_unique<ByteTokens>(TextCorpus(
          recipe.data.paths, config::place_of(recipe, "data.paths"))));
}

// Checks that the model has all tokens of the recipe's tokenizer, and that this
// tokenizer wrote the files.
void check_tokenizer(const config::Recipe& recipe, const FileTokens& tokens) {
  if (recipe.data.tokenizer == "byte") {
    // The default says nothing about the files.
    return;
  }
  const auto tokenizer = tokenizers::open_tokenizer(recipe.data.tokenizer);
  if (tokenizer->vocab_size() > models::model_outputs(recipe)) {
    config::refuse(
        recipe,
        "data.tokenizer",
        fmt::format(
            "{} has more tokens than model.vocab_size={}. Raise "
            "model.vocab_size, or use another tokenizer",
            tokenizer->describe(),
            models::model_outputs(recipe)));
  }
  for (const TokenFile& file : tokens.files()) {
    if (file.origin() &&
        file.origin()->fingerprint != tokenizer->fingerprint_text()) {
      config::refuse(
          recipe,
          "data.tokenizer",
          fmt::format(
              "\"{}\" was written with tokenizer {}, but data.tokenizer is {}. "
              "Use the same tokenizer",
              file.file().path,
              file.origin()->tokenizer,
              tokenizer->describe()));
    }
  }
}

// Empty leaves the type to the files.
std::optional<TokenType> token_type(config::TokenDtype dtype) {
  switch (dtype) {
    case config::TokenDtype::kAuto:
      break;
    case config::TokenDtype::kUint16:
      return TokenType::kUint16;
    case config::TokenDtype::kUint32:
      return TokenType::kUint32;
  }
  return std::nullopt;
}

std::unique_ptr<Dataset> open_tokens(const config::Recipe& recipe) {
  const config::DataConfig& data = recipe.data;
  const FileTokens::Options options{
      .format = data.format,
      .type = token_type(data.dtype),
      .vocab_size = models::model_outputs(recipe)};
  auto tokens = std::make_unique<FileTokens>(
      data.paths, options, config::place_of(recipe, "data.paths"));
  check_tokenizer(recipe, *tokens);
  return sample(recipe, std::move(tokens));
}

std::unique_ptr<Dataset> open_digits(const config::Recipe& recipe) {
  return std::make_unique<DigitImages>(
      recipe.data.paths,
      static_cast<uint64_t>(recipe.seed),
      config::place_of(recipe, "data.paths"));
}

std::unique_ptr<Dataset> open_data(const config::Recipe& recipe) {
  switch (recipe.data.type) {
    case config::DataType::kDigits:
      return open_digits(recipe);
    case config::DataType::kTokens:
      return open_tokens(recipe);
    case config::DataType::kText:
      break;
  }
  return open_text(recipe);
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
  WEFT_CHECK(
      left_over == 0,
      "batches",
      where,
      "global_batch_size: got ",
      shape.global_batch_size,
      ", expected a multiple of dp * micro_batch_size = ",
      shape.dp * shape.micro_batch_size,
      ".");
  WEFT_CHECK(
      shape.dp_rank >= 0 && shape.dp_rank < shape.dp,
      "batches",
      where,
      "dp_rank ",
      shape.dp_rank,
      " is outside of [0, dp).");
}

BatchLoader BatchLoader::open(const config::Recipe& recipe, int64_t dp_rank) {
  return {
      open_data(recipe),
      {.global_batch_size = recipe.train.global_batch_size,
       .micro_batch_size = recipe.train.micro_batch_size,
       .dp = recipe.mesh.batch_ranks(),
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

namespace {

at::Tensor staged(const at::Tensor& tensor, c10::Device device) {
  return tensor.pin_memory().to(
      device, tensor.scalar_type(), /*non_blocking=*/true);
}

} // namespace

Batch to_device(const Batch& batch, c10::Device device) {
  if (device.is_cpu()) {
    return batch;
  }
  return {
      .input = staged(batch.input, device),
      .target = staged(batch.target, device),
      .first_sample = batch.first_sample};
}

} // namespace weft::data
