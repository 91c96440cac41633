#pragma once

#include <map>
#include <string>
#include <string_view>

namespace weft::launcher {

/// Which standard streams of which worker, as torchrun's --redirects and --tee
/// say it: "3" for all workers or "0:1,1:2" for each local rank named.
class StreamSelection {
 public:
  /// Bits, numbered as torchrun numbers them.
  static constexpr int kStdout = 1;
  static constexpr int kStderr = 2;

  /// Throws: LaunchError naming `flag` and the part that is malformed.
  static StreamSelection parse(std::string_view flag, std::string_view text);

  bool has(int local_rank, int stream) const;
  /// Whether any worker has any stream.
  bool any() const;
  /// The highest local rank that is named, or -1.
  int max_rank() const;

 private:
  int all_ = 0;
  std::map<int, int> by_rank_;
};

} // namespace weft::launcher
