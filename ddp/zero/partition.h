#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/placement.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// How ZeroRedundancyOptimizer divides the update over the replicas.
enum class ZeroPartition {
  /// Each parameter belongs to one replica: the largest parameter first, to the
  /// replica with the fewest bytes. Correct for every optimizer that handles
  /// parameters separately.
  kWholeParameters,
  /// Each replica has ceil(rows / replicas) rows (dim 0) of each parameter; the
  /// last replicas may have none. Correct only for elementwise optimizers, e.g.
  /// SGD, Adam, AdamW, Adagrad and RMSprop: an optimizer that takes the norm of
  /// a parameter would get the norm of a part.
  kEvenSplit,
};

/// The replica that updates a parameter and has its state. See Note [Parts of
/// parameters].
struct ZeroPart {
  /// The replicas that update a parameter.
  enum class Kind {
    /// Every replica updates it, because it is too small to divide or no
    /// placement could describe its division.
    kReplicated,
    kOwned,   ///< One replica updates it.
    kSharded, ///< Each replica updates its rows.
  };
  /// The replicas that update the parameter.
  Kind kind = Kind::kReplicated;
  /// The rank in dp that owns a kOwned parameter.
  int64_t owner = 0;
  /// The placement of the state over dp.
  dtensor::Placement placement;
};

/// Divides parameters over `dp`. Deterministic, so identical on all ranks.
/// Parameters that are added later do not move earlier ones.
class PartPlanner {
 public:
  /// Creates the plan of no parameters.
  PartPlanner(mesh::DeviceMesh dp, ZeroPartition partition);

  /// Returns the parts of a group of parameters.
  /// Throws: c10::ValueError for DTensors on a root mesh other than that of
  /// `dp`, or on the dim of `dp`.
  std::vector<ZeroPart> plan(const std::vector<at::Tensor>& parameters);

  /// The bytes of the kOwned parameters of each rank.
  const std::vector<int64_t>& owned_bytes() const { return owned_bytes_; }

 private:
  mesh::DeviceMesh dp_;
  ZeroPartition partition_;
  std::vector<int64_t> owned_bytes_;
};

} // namespace weft::ddp
