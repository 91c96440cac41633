#include "recipes/data/text_dataset.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

namespace weft::recipes {

TextDataset::TextDataset(TextCorpus corpus, SampleOrder order)
    : corpus_(std::move(corpus)), order_(order) {}

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
  return read(offsets);
}

Batch TextDataset::heldout(std::span<const int64_t> samples) {
  std::vector<int64_t> offsets;
  for (const int64_t sample : samples) {
    offsets.push_back(order_.heldout_offset(sample));
  }
  return read(offsets);
}

std::string TextDataset::fingerprint_text() const {
  return corpus_.fingerprint_text();
}

std::string TextDataset::describe() const {
  return fmt::format(
      "{:.1f} MB of text", static_cast<double>(corpus_.size()) * 1e-6);
}

Batch TextDataset::read(const std::vector<int64_t>& offsets) {
  const auto batch_size = static_cast<int64_t>(offsets.size());
  const int64_t length = order_.sequence_length();
  Batch batch{
      .input = at::empty({batch_size, length}, at::kLong),
      .target = at::empty({batch_size, length}, at::kLong)};
  std::vector<uint8_t> bytes(static_cast<size_t>(length) + 1);
  auto* input = batch.input.mutable_data_ptr<int64_t>();
  auto* target = batch.target.mutable_data_ptr<int64_t>();
  for (const int64_t offset : offsets) {
    corpus_.read(offset, bytes);
    input = std::copy(bytes.begin(), bytes.end() - 1, input);
    target = std::copy(bytes.begin() + 1, bytes.end(), target);
  }
  return batch;
}

} // namespace weft::recipes
