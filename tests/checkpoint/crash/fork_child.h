#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <sys/types.h>

namespace weft::test {

/// A fork of this process that runs one function: no program has to start, and
/// libtorch is loaded already. This process must have no threads yet.
class ForkChild {
 public:
  /// Runs `body` in the child. `body` may call `ready` once: it reports it to
  /// this process and blocks until proceed(). Its result comes back as
  /// report().
  using Body = std::function<std::string(const std::function<void()>& ready)>;
  explicit ForkChild(const Body& body);
  ForkChild(ForkChild&& other) noexcept;
  ForkChild& operator=(ForkChild&&) = delete;
  /// Kills it if it still runs.
  ~ForkChild();

  pid_t pid() const { return pid_; }
  /// Blocks until the child is ready; false if it ended or `limit` passed.
  bool wait_ready(std::chrono::milliseconds limit);
  void proceed();
  void kill();
  /// The signal that ended it, 0 for none; nothing if it still runs.
  std::optional<int> ended();
  /// What its body returned; empty if it did not come to its end.
  std::string report();

 private:
  pid_t pid_;
  int channel_;
  std::optional<int> signal_;
  std::string text_;
};

} // namespace weft::test
