#pragma once

#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/find_files.h"

namespace weft::data {

/// The digit images of scikit-learn: rows of 64 pixels from 0 to 16 and the
/// digit, separated by commas, in files that may be gzipped. All are kept in
/// memory. The last 10 % of the rows are validation data; the others are
/// shuffled in every epoch.
/// Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI
/// Machine Learning Repository (1998).
class DigitImages : public Dataset {
 public:
  /// The height and width in pixels.
  static constexpr int64_t kSize = 8;
  static constexpr int64_t kChannels = 1;
  static constexpr int64_t kClasses = 10;

  /// `where` is the start of error messages, e.g. "recipes/x.yaml:9:10:
  /// data.paths".
  /// Throws: mesh::UsageError if a path matches nothing (the message says how
  /// to get the images) or there are fewer than two images; DataError with file
  /// and line for a malformed row.
  DigitImages(
      const std::vector<std::string>& paths,
      uint64_t seed,
      const std::string& where = "data.paths");

  int64_t num_train_samples() const override;
  int64_t num_heldout_samples() const override;
  Batch train(std::span<const int64_t> samples) override;
  Batch heldout(std::span<const int64_t> samples) override;
  std::string fingerprint_text() const override;
  std::string describe() const override;

 private:
  int64_t size() const { return target_N_.numel(); }
  Batch take(const std::vector<int64_t>& rows) const;

  std::vector<DataFile> files_;
  at::Tensor input_NCHW_;
  at::Tensor target_N_;
  int64_t heldout_;
  uint64_t seed_;
};

} // namespace weft::data
