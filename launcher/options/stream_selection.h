#pragma once

#include <map>
#include <string>
#include <string_view>

namespace weft::launcher {

/// The selected standard streams of each worker, in the syntax of torchrun's
/// --redirects and --tee: "3" for all workers or "0:1,1:2" for individual local
/// ranks.
class StreamSelection {
 public:
  /// Bits, with torchrun's values.
  static constexpr int kStdout = 1;
  static constexpr int kStderr = 2;

  /// Throws: LaunchError naming `flag` and the malformed part if the text is
  /// malformed.
  static StreamSelection parse(std::string_view flag, std::string_view text);

  bool has(int local_rank, int stream) const;
  /// Returns true if any stream of any worker is selected.
  bool any() const;
  /// Returns the highest local rank that is named, or -1.
  int max_rank() const;

 private:
  int all_ = 0;
  std::map<int, int> by_rank_;
};

} // namespace weft::launcher
