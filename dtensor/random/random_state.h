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
// index in the whole tensor). So a dropout mask is the same on every mesh, one
// rank included, however the tensor is cut. The state is two integers, shared
// by a mesh and all that were cut from it. All ranks run the same ops, so their
// sequences agree without communication. libtorch's generators play no part.

/// What the next random op on a mesh's DTensors draws from. A value; what a
/// checkpoint keeps.
struct RandomState {
  /// libtorch's own default.
  uint64_t seed = 67280421310721ULL;
  uint64_t sequence = 0;

  bool operator==(const RandomState&) const = default;
};

/// Starts the sequence of `mesh`, and of all meshes with its root, anew.
/// Collective: none, but every rank has to give the same seed.
void manual_seed(const mesh::DeviceMesh& mesh, uint64_t seed);
RandomState random_state(const mesh::DeviceMesh& mesh);
void set_random_state(const mesh::DeviceMesh& mesh, const RandomState& state);

/// The key of the next random op; moves the sequence on.
RandomKey next_random_key(const mesh::DeviceMesh& mesh);

/// What a data-parallel replica's random ops count as: see RandomScope.
struct RandomBatch {
  /// The dim of activations that holds the batch.
  int64_t dim = 0;
  /// The replica's first sample in the global batch, how many it has here, and
  /// how many there are in all.
  int64_t first_sample = 0;
  int64_t samples = 0;
  int64_t global_samples = 0;
};

/// While one lives, random ops on `mesh` start from `state`, and tensors whose
/// batch dim is a multiple of `batch.samples` count as those samples of the
/// global batch: replicas that know only their own batch draw what one rank
/// with all of it would. The state that was there before comes back afterwards,
/// so a recomputed forward pass draws the same numbers again.
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

/// Where the sequences that random ops draw from stood before the first draw,
/// for each mesh's root.
class RandomStateRecorder
    : public c10::DebugInfoBase,
      public std::enable_shared_from_this<RandomStateRecorder> {
 public:
  /// Whose scope is around this one's.
  void set_outer(std::shared_ptr<RandomStateRecorder> outer) {
    outer_ = std::move(outer);
  }
  /// To be called by whatever draws.
  void note(
      const mesh::DeviceMesh& root,
      const RandomState& state,
      const std::optional<RandomBatch>& batch);
  /// Runs `body` as if it were then.
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

/// While one lives, random ops of this thread are noted in `starts`, and in
/// those of the scopes around it.
class RandomRecorderGuard {
 public:
  explicit RandomRecorderGuard(std::shared_ptr<RandomStateRecorder> starts);

 private:
  c10::DebugInfoGuard guard_;
};

/// This rank's part of a tensor that a random op fills, and where its elements
/// count as lying.
struct RandomPart {
  RandomKey key;
  std::vector<int64_t> local_sizes;
  std::vector<int64_t> global_sizes;
  /// For each dim, the positions that this rank has, in order.
  std::vector<RowRanges> ranges;

  /// Whether each dim's positions lie side by side.
  bool is_box() const;
  LocalBox box() const;
  /// [local_sizes], int64: the row-major index of each element in the whole.
  at::Tensor indices() const;
};

/// Takes the next key of the mesh for a tensor of `sizes` that lies as `spec`
/// says; a Partial counts as whole.
RandomPart next_random_part(const DTensorSpec& spec, c10::IntArrayRef sizes);

/// A random permutation of [0, n), replicated, int64.
at::Tensor randperm(int64_t n, const mesh::DeviceMesh& mesh);

} // namespace weft::dtensor
