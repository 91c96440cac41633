#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "mesh/backends/shm/shm_segment.h"
#include "mesh/backends/shm/shm_slot_writer.h"
#include "mesh/communicator/backend.h"

namespace weft::mesh {

enum class ShmKind : uint32_t {
  kAllReduce = 1,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kBarrier
};
const char* name_of(ShmKind kind);

/// This rank's position in its group, and the size of the group.
struct ShmShape {
  int64_t rank;
  int64_t size;
};

/// One collective of one rank, executed in rounds. It keeps its tensors alive.
/// See Note [Rounds].
class ShmCall {
 public:
  ShmCall(ShmKind kind, ShmShape shape) : kind_(kind), shape_(shape) {}
  ShmCall(const ShmCall&) = delete;
  ShmCall& operator=(const ShmCall&) = delete;
  virtual ~ShmCall() = default;

  ShmKind kind() const { return kind_; }
  /// The identity that Backend::announce() received for this call.
  uint64_t identity() const { return identity_; }
  void set_identity(uint64_t identity) { identity_ = identity; }
  /// The number of rounds that this rank needs.
  virtual uint64_t rounds() const = 0;
  /// Returns true if `round` may be written before the previous round was read.
  virtual bool writes_ahead(uint64_t round) const;
  /// Writes the data that the other ranks read in `round` into the slot.
  virtual void
  write(uint64_t round, std::byte* slot, ShmSlotWriter& writer) = 0;
  /// Returns true if this rank reads the slots of `peer`.
  virtual bool reads(int64_t peer) const;
  /// Reads the slots of one round, which are all published. `at` is the round's
  /// number in the group.
  virtual void read(uint64_t round, const ShmSegment& segment, uint64_t at) = 0;

  /// Values that must be identical on all ranks.
  virtual c10::ScalarType dtype() const = 0;
  virtual int64_t detail() const { return 0; }
  /// The number of bytes that this rank sends to `peer` and receives from it.
  /// Both sides must agree.
  virtual uint64_t bytes_for(int64_t peer) const = 0;
  virtual uint64_t bytes_from(int64_t peer) const = 0;

 protected:
  const ShmShape& shape() const { return shape_; }

 private:
  ShmKind kind_;
  ShmShape shape_;
  uint64_t identity_ = 0;
};

/// Creates calls on tensors as Backend passes them. `slot_bytes` is the
/// capacity of a slot.
std::unique_ptr<ShmCall> shm_all_reduce(
    ShmShape shape,
    size_t slot_bytes,
    const at::Tensor& tensor,
    ReduceOp op);
std::unique_ptr<ShmCall> shm_all_gather(
    ShmShape shape,
    size_t slot_bytes,
    const at::Tensor& output,
    const at::Tensor& input,
    const Backend::Counts& counts);
std::unique_ptr<ShmCall> shm_reduce_scatter(
    ShmShape shape,
    size_t slot_bytes,
    const at::Tensor& output,
    const at::Tensor& input,
    const Backend::Counts& counts,
    ReduceOp op);
std::unique_ptr<ShmCall> shm_all_to_all(
    ShmShape shape,
    size_t slot_bytes,
    const at::Tensor& output,
    const at::Tensor& input,
    const Backend::Counts& output_counts,
    const Backend::Counts& input_counts);
std::unique_ptr<ShmCall> shm_broadcast(
    ShmShape shape,
    size_t slot_bytes,
    const at::Tensor& tensor,
    int64_t root);
std::unique_ptr<ShmCall> shm_barrier(ShmShape shape);

} // namespace weft::mesh
