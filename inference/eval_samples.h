#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "config/recipe.h"
#include "data/dataset.h"

namespace weft::recipes {

/// What a model is asked about, by number; see Batch.
struct EvalSamples {
  int64_t count = 0;
  /// Targets that each has.
  int64_t targets = 1;
  std::function<Batch(std::span<const int64_t>)> read;
  /// "96 windows of 128 tokens from corpus.bin".
  std::string text;
  /// What all ranks have to see alike.
  std::string fingerprint;
};

/// The held-out samples of the recipe's data, each once.
/// Throws: mesh::UsageError at the recipe's key.
EvalSamples heldout_samples(const Recipe& recipe);

/// All of a file of raw little-endian uint16 tokens: windows of
/// data.sequence_length + 1 tokens, each beginning with the last token of the
/// one before; what is left of them at the end is dropped.
/// Throws: mesh::UsageError for a model that reads no tokens, and with file and
/// offset for a file that is no such file, has a token beyond the model's
/// vocabulary, or too few for one window.
EvalSamples token_windows(const Recipe& recipe, const std::string& path);

} // namespace weft::recipes
