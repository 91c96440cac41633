#pragma once

#include <string>
#include <vector>

namespace weft::recipes {

/// Something that a run depends on, as this host has it.
struct Check {
  /// "cpu", "shared memory", ...
  std::string name;
  std::string value;
  /// What would not work, and the way out; empty: nothing.
  std::string problem;
};

/// Versions, devices, memory, limits and what ranks talk through, tried where
/// trying is cheap. Opens CUDA only where there is a device of NVIDIA's.
std::vector<Check> check_host();

} // namespace weft::recipes
