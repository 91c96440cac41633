#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "dtensor/random/random.h"
#include "dtensor/spec/spec.h"

namespace weft::dtensor {

// Note [Random ops]
// ~~~~~~~~~~~~~~~~~
// Every random op on a DTensor takes the next number of its mesh's sequence as
// its stream, and each element's numbers come from (seed, stream, the element's
// index in the full tensor). So a dropout mask is the same on every mesh, one
// rank included, however the tensor is cut. The state is two integers, shared
// by a mesh and all that were cut from it. All ranks run the same ops, so their
// sequences agree without communication. libtorch's generators play no part.

/// The state from which the next random op on a mesh's DTensors draws.
/// Checkpoints store it.
struct RandomState {
  /// The default seed of libtorch.
  uint64_t seed = 67280421310721ULL;
  uint64_t sequence = 0;

  bool operator==(const RandomState&) const = default;
};

/// Restarts the sequence of `mesh` and of all meshes with its root.
/// Collective: none, but every rank must pass the same seed.
void manual_seed(const mesh::DeviceMesh& mesh, uint64_t seed);
RandomState random_state(const mesh::DeviceMesh& mesh);
void set_random_state(const mesh::DeviceMesh& mesh, const RandomState& state);

/// Returns the key of the next random op and advances the sequence.
RandomKey next_random_key(const mesh::DeviceMesh& mesh);

/// The position of a replica's samples in the global batch, for RandomScope.
struct RandomBatch {
  /// The batch dim of activations.
  int64_t dim = 0;
  /// The replica's first sample in the global batch, its number of samples, and
  /// the number of samples in the global batch.
  int64_t first_sample = 0;
  int64_t samples = 0;
  int64_t global_samples = 0;
};

/// Scope in which random ops on `mesh` start from `state`. With `batch`, a
/// tensor whose size in dim `batch.dim` is a multiple of `batch.samples` is
/// treated as a part of the global batch's tensor, from sample
/// `batch.first_sample` on. So a replica, which has only its own samples, draws
/// for them what one rank with the global batch would draw. The previous state
/// is restored at the end, so a recomputed forward draws the same numbers.
class RandomScope {
 public:
  RandomScope(
      const mesh::DeviceMesh& mesh,
      const RandomState& state,
      const std::optional<RandomBatch>& batch = std::nullopt);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  mesh::DeviceMesh mesh_;
  RandomState state_;
  std::optional<RandomBatch> batch_;
};

/// The states of the random sequences before the first draw, for each mesh
/// root.
class RandomStateRecorder
    : public c10::DebugInfoBase,
      public std::enable_shared_from_this<RandomStateRecorder> {
 public:
  /// Sets the recorder of the enclosing scope.
  void set_outer(std::shared_ptr<RandomStateRecorder> outer) {
    outer_ = std::move(outer);
  }
  /// Records a draw. Called by everything that draws.
  void note(
      const mesh::DeviceMesh& root,
      const RandomState& state,
      const std::optional<RandomBatch>& batch);
  /// Runs `body` with the recorded states.
  void rewind(const std::function<void()>& body) const;

 private:
  struct Start {
    mesh::DeviceMesh root;
    RandomState state;
    std::optional<RandomBatch> batch;
  };
  mutable std::mutex mutex_;
  std::vector<Start> starts_;
  std::shared_ptr<RandomStateRecorder> outer_;
};

/// Scope in which random ops of this thread are recorded in `starts` and in the
/// recorders of enclosing scopes.
class RandomRecorderGuard {
 public:
  explicit RandomRecorderGuard(std::shared_ptr<RandomStateRecorder> starts);

 private:
  c10::DebugInfoGuard guard_;
};

/// This rank's part of a tensor that a random op fills, and the positions of
/// its elements.
struct RandomPart {
  RandomKey key;
  std::vector<int64_t> local_sizes;
  std::vector<int64_t> global_sizes;
  /// The positions of this rank along each dim, in order.
  std::vector<RowRanges> ranges;

  /// Returns true if the positions along each dim are consecutive.
  bool is_box() const;
  LocalBox box() const;
  /// Returns the row-major index of each element in the full tensor.
  /// Shapes: [local_sizes], int64.
  at::Tensor indices() const;
};

/// Takes the mesh's next key for a tensor of `sizes` with the placements of
/// `spec`. Partial counts as Replicate.
RandomPart next_random_part(const DTensorSpec& spec, c10::IntArrayRef sizes);

/// Returns a random permutation of [0, n), replicated, int64.
at::Tensor randperm(int64_t n, const mesh::DeviceMesh& mesh);

} // namespace weft::dtensor
