#pragma once

#include <cstdint>

namespace weft::recipes {

/// What scikit-learn's digit images are.
struct DigitImages {
  /// Units: pixels, of height and of width.
  static constexpr int64_t kSize = 8;
  static constexpr int64_t kChannels = 1;
  static constexpr int64_t kClasses = 10;
};

} // namespace weft::recipes
