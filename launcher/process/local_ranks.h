#pragma once

namespace weft::launcher {

/// Consecutive workers of this host, which start and end together.
struct LocalRanks {
  int first = 0;
  int count = 0;

  int end() const { return first + count; }
  bool has(int local_rank) const {
    return local_rank >= first && local_rank < end();
  }
};

} // namespace weft::launcher
