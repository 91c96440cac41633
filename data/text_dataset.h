#pragma once

#include <memory>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "data/sample_order.h"
#include "data/text_corpus.h"
#include "data/token_source.h"

namespace weft::data {

/// Windows of consecutive tokens, in the order of SampleOrder.
class TextDataset : public Dataset {
 public:
  TextDataset(std::unique_ptr<TokenSource> tokens, SampleOrder order);
  /// Creates a dataset of byte tokens.
  TextDataset(TextCorpus corpus, SampleOrder order);

  int64_t num_train_samples() const override;
  int64_t num_heldout_samples() const override;
  Batch train(std::span<const int64_t> samples) override;
  Batch heldout(std::span<const int64_t> samples) override;
  std::string fingerprint_text() const override;
  std::string describe() const override;

 private:
  // `kind` and `samples` are for messages.
  Batch read(
      const std::vector<int64_t>& offsets,
      const char* kind,
      std::span<const int64_t> samples);

  std::unique_ptr<TokenSource> tokens_;
  SampleOrder order_;
};

} // namespace weft::data
