#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "config/recipe.h"
#include "data/dataset.h"

namespace weft::inference {

/// The samples of an evaluation. read() returns those with the given numbers.
struct EvalSamples {
  int64_t count = 0;
  /// The number of targets of each sample.
  int64_t targets = 1;
  std::function<data::Batch(std::span<const int64_t>)> read;
  /// A description: "96 windows of 128 tokens from corpus.bin".
  std::string text;
  /// A fingerprint that must be identical on all ranks.
  std::string fingerprint;
};

/// Returns the validation samples of the recipe's data, each once.
/// Throws: mesh::UsageError at the recipe's key.
EvalSamples heldout_samples(const config::Recipe& recipe);

/// Returns a file of raw little-endian uint16 tokens as windows of
/// data.sequence_length + 1 tokens, each beginning with the last token of the
/// previous one; an incomplete window at the end is dropped.
/// Throws: mesh::UsageError for a model that does not read tokens, and with
/// file and offset for a malformed file, a token beyond the model's vocabulary,
/// or too few tokens for one window.
EvalSamples token_windows(
    const config::Recipe& recipe,
    const std::string& path);

} // namespace weft::inference
