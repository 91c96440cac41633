#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/placement.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// How ZeroRedundancyOptimizer divides the update over the replicas.
enum class ZeroPartition {
  /// Each parameter is one replica's, the largest first to whoever has the
  /// fewest bytes. Right for every optimizer that treats parameters one by one.
  kWholeParameters,
  /// Each replica has a part of the rows (dim 0) of each parameter, ceil(rows /
  /// replicas) from the first on; the last ones may have none. Right only for
  /// optimizers that treat elements one by one, e.g. SGD, Adam, AdamW, Adagrad
  /// and RMSprop: one that takes the norm of a parameter would take a part's.
  kEvenSplit,
};

/// Who updates a parameter and has its state. See Note [Parts of parameters].
struct ZeroPart {
  enum class Kind {
    /// Every replica: what is too small to be divided, or lies so that no
    /// placement could say it.
    kReplicated,
    kOwned,
    kSharded,
  };
  Kind kind = Kind::kReplicated;
  /// Of a kOwned parameter, as a rank of dp.
  int64_t owner = 0;
  /// Where the state lies over dp.
  dtensor::Placement placement;
};

/// Divides parameters over `dp`; a function of its arguments, the same on all
/// ranks. What comes later does not move what came before.
class PartPlanner {
 public:
  PartPlanner(mesh::DeviceMesh dp, ZeroPartition partition);

  /// The parts of a group of parameters. Throws: c10::ValueError for DTensors
  /// of another root mesh than `dp`'s, and those that lie on its dim.
  std::vector<ZeroPart> plan(const std::vector<at::Tensor>& parameters);

  /// Bytes of the parameters of each rank that are kOwned.
  const std::vector<int64_t>& owned_bytes() const { return owned_bytes_; }

 private:
  mesh::DeviceMesh dp_;
  ZeroPartition partition_;
  std::vector<int64_t> owned_bytes_;
};

} // namespace weft::ddp
