#include "data/text_dataset.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "data/data_error.h"

namespace weft::data {

TextDataset::TextDataset(std::unique_ptr<TokenSource> tokens, SampleOrder order)
    : tokens_(std::move(tokens)), order_(order) {}

TextDataset::TextDataset(TextCorpus corpus, SampleOrder order)
    : TextDataset(std::make_unique<ByteTokens>(std::move(corpus)), order) {}

int64_t TextDataset::num_train_samples() const {
  return order_.num_train_samples();
}

int64_t TextDataset::num_heldout_samples() const {
  return order_.num_heldout_samples();
}

Batch TextDataset::train(std::span<const int64_t> samples) {
  std::vector<int64_t> offsets;
  for (const int64_t sample : samples) {
    offsets.push_back(order_.train_offset(sample));
  }
  return read(offsets, "sample", samples);
}

Batch TextDataset::heldout(std::span<const int64_t> samples) {
  std::vector<int64_t> offsets;
  for (const int64_t sample : samples) {
    offsets.push_back(order_.heldout_offset(sample));
  }
  return read(offsets, "held-out sample", samples);
}

std::string TextDataset::fingerprint_text() const {
  return tokens_->fingerprint_text();
}

std::string TextDataset::describe() const {
  return tokens_->describe();
}

Batch TextDataset::read(
    const std::vector<int64_t>& offsets,
    const char* kind,
    std::span<const int64_t> samples) {
  const auto batch_size = static_cast<int64_t>(offsets.size());
  const int64_t length = order_.sequence_length();
  Batch batch{
      .input = at::empty({batch_size, length}, at::kLong),
      .target = at::empty({batch_size, length}, at::kLong)};
  std::vector<int64_t> tokens(static_cast<size_t>(length) + 1);
  auto* input = batch.input.mutable_data_ptr<int64_t>();
  auto* target = batch.target.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < offsets.size(); ++i) {
    try {
      tokens_->read(offsets[i], tokens);
    } catch (const DataError& error) {
      mesh::throw_error<DataError>(fmt::format(
          "{} (in {} {}: tokens {} to {}, counted over all files)",
          error.what_without_backtrace(),
          kind,
          samples[i],
          offsets[i],
          offsets[i] + length));
    }
    input = std::copy(tokens.begin(), tokens.end() - 1, input);
    target = std::copy(tokens.begin() + 1, tokens.end(), target);
  }
  return batch;
}

} // namespace weft::data
