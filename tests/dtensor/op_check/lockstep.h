#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"

namespace weft::dtensor::check {

/// Ranks that are threads of this process, over gloo, and outlive a case that
/// goes wrong: an error on one rank ends the others' collectives, and the next
/// case gets a new world.
class LockstepRanks {
 public:
  explicit LockstepRanks(std::vector<int64_t> mesh_shape);
  ~LockstepRanks();
  LockstepRanks(const LockstepRanks&) = delete;
  LockstepRanks& operator=(const LockstepRanks&) = delete;

  using Body = std::function<void(const mesh::DeviceMesh&)>;

  /// Runs `body` on all ranks and returns what each threw, "" if nothing.
  std::vector<std::string> run(const Body& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::dtensor::check
