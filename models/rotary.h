#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace weft::models {

/// The scaling of rotary frequencies for sequences longer than those that a
/// model was first trained on.
/// Source: transformers' modeling_rope_utils, rope_type "linear" and "llama3".
struct RopeScaling {
  enum class Type { kNone, kLinear, kLlama3 };

  Type type = Type::kNone;
  /// The divisor of scaled frequencies.
  double factor = 8;
  /// kLlama3 scales the frequencies with fewer than low_freq_factor wavelengths
  /// in original_max_position_embeddings, keeps those with more than
  /// high_freq_factor, and interpolates between them.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

/// The cosines and sines of rotary position embedding, in Hugging Face's
/// half-split form. Source: Su et al., RoFormer (2021).
struct RotaryTables {
  /// Shapes: [T, d].
  at::Tensor cos_Td;
  at::Tensor sin_Td;
};

/// Returns Hugging Face's inv_freq.
/// Shapes: [head_dim / 2].
at::Tensor
rotary_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling);

/// Returns the tables for positions below `length`.
/// Shapes: frequencies [d / 2].
RotaryTables rotary_tables(const at::Tensor& frequencies, int64_t length);

} // namespace weft::models
