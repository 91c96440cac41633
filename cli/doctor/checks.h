#pragma once

#include <string>
#include <vector>

namespace weft::cli {

/// A requirement of a run and its state on this host.
struct Check {
  /// The name: "cpu", "shared memory", ...
  std::string name;
  std::string value;
  /// The problem and how to solve it. Empty if there is none.
  std::string problem;
};

/// Checks versions, devices, memory, limits and transports, and tests them if
/// that is cheap. Opens CUDA only if there is an NVIDIA device.
std::vector<Check> check_host();

} // namespace weft::cli
