#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::mesh {

class Backend;
class FlightRecorder;
class GroupWatch;

/// The operation of a reduction.
enum class ReduceOp { kSum, kAvg, kMin, kMax, kProduct };

/// A running collective. Cheap to copy; all copies refer to the same
/// collective. On a CUDA device "blocks" means that this thread's current
/// stream waits and the host continues.
/// Lifetime: keeps the tensors it reads and writes alive until it is complete.
class Work {
 public:
  struct State;
  /// Creates a completed collective.
  Work();
  /// Used by Communicator.
  explicit Work(std::shared_ptr<State> state);

  /// Blocks until the outputs hold the result. A second call returns
  /// immediately.
  /// Throws: CommError if the collective failed, timed out or lost a peer;
  /// DisagreementError if ranks called different collectives.
  void wait();
  /// Returns true if wait() would not block.
  bool is_completed() const;

 private:
  std::shared_ptr<State> state_;
};

/// A group of ranks and its collectives. It is the only interface for
/// communication. Cheap to copy; copies share the group, its order of calls and
/// its flight recorder.
/// A group serves one caller. Several threads of a rank may use it only if the
/// program orders their calls: a thread was joined before the next one started,
/// autograd threads run backward for the caller, or a CallerScope
/// (mesh/communicator/caller.h) declares the order. Threads without a defined
/// order each need their own group (World::make_group(),
/// DeviceMesh::from_group()); calls on a shared one fail.
/// Every method below is collective over the group: all ranks call the same
/// methods in the same order with the same dtype and matching sizes. Each
/// method starts the operation and returns; the result is valid after
/// Work::wait(). Tensors may be non-contiguous unless stated otherwise. A group
/// of one rank never communicates and tensors without elements are not sent;
/// neither creates a flight recorder entry. `name` is the name of the data (a
/// parameter or module) in the flight recorder and in errors; it must be
/// identical on all ranks.
/// Throws: c10::ValueError for wrong arguments, before anything is sent;
/// DisagreementError on all ranks if they call different collectives or threads
/// call without a common order; CommError after the group has failed.
class Communicator {
 public:
  /// `watch` supervises the group under the name `key`. Null disables
  /// supervision.
  explicit Communicator(
      std::shared_ptr<Backend> backend,
      const std::shared_ptr<GroupWatch>& watch = nullptr,
      const std::string& key = {});
  Communicator(const Communicator&) = default;
  Communicator(Communicator&&) = default;
  Communicator& operator=(const Communicator&) = default;
  Communicator& operator=(Communicator&&) = default;
  ~Communicator();

  /// This rank's position in the group, in [0, size()).
  int64_t rank() const;
  /// The number of ranks in the group.
  int64_t size() const;
  /// The group's name, e.g. "tp/1".
  const std::string& name() const;
  /// "shm" (shared memory), "gloo", "nccl" (with shm or gloo for CPU tensors)
  /// or "fake". A group of one rank is "self".
  std::string_view backend() const;
  /// World ranks of the group's members, in group order.
  const std::vector<int64_t>& ranks() const;

  /// Reduces `tensor` over the group in place. All ranks get bitwise the same
  /// result; with the backend shm, values are added in rank order. For booleans
  /// kSum is "or" and kProduct is "and".
  Work all_reduce(
      const at::Tensor& tensor,
      ReduceOp op = ReduceOp::kSum,
      std::string_view name = {});

  /// Gathers equal parts: `output` receives the input of rank r, of n elements,
  /// at r * n.
  /// Shapes: output.numel() == size() * input.numel(); output contiguous.
  Work all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      std::string_view name = {});

  /// Gathers parts of different sizes: outputs[r] receives the input of rank r.
  /// Shapes: outputs[r] has the shape of rank r's input, which may be empty.
  Work all_gather_uneven(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      std::string_view name = {});

  /// Reduces `input` over the group and keeps this rank's equal part. Values
  /// are added in rank order; Half and BFloat16 accumulate in float.
  /// Shapes: input.numel() == size() * output.numel(); output contiguous.
  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op = ReduceOp::kSum,
      std::string_view name = {});

  /// Like reduce_scatter(), with parts of different sizes: rank r receives the
  /// reduction of every rank's inputs[r].
  Work reduce_scatter_uneven(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      ReduceOp op = ReduceOp::kSum,
      std::string_view name = {});

  /// Sends inputs[r] to rank r and receives outputs[r] from rank r. Sizes may
  /// differ and be 0; outputs[r] on this rank has the numel of inputs[rank()]
  /// on rank r.
  Work all_to_all(
      const std::vector<at::Tensor>& outputs,
      const std::vector<at::Tensor>& inputs,
      std::string_view name = {});

  /// Overwrites `tensor` with the tensor of the group rank `root`.
  Work
  broadcast(const at::Tensor& tensor, int64_t root, std::string_view name = {});

  /// Blocks until every rank of the group has called it.
  void barrier(std::string_view name = {});

  /// Checks for a device collective that failed after wait() returned. Call it
  /// after values that depend on a collective were read on the host and before
  /// they are used.
  /// Throws: CommError if a collective failed.
  void check() const;

  /// Sends many tensors in one message. Tensors of one call may differ in shape
  /// and dtype; each dtype is one message.
  Work all_reduce_coalesced(
      const std::vector<at::Tensor>& tensors,
      ReduceOp op = ReduceOp::kSum,
      std::string_view name = {});
  /// Runs all_gather() for each pair of tensors, in one message per dtype.
  Work all_gather_coalesced(
      const std::vector<at::Tensor>& outputs,
      const std::vector<at::Tensor>& inputs,
      std::string_view name = {});
  /// Runs reduce_scatter() for each pair of tensors, in one message per dtype.
  Work reduce_scatter_coalesced(
      const std::vector<at::Tensor>& outputs,
      const std::vector<at::Tensor>& inputs,
      ReduceOp op = ReduceOp::kSum,
      std::string_view name = {});
  /// Runs broadcast() for each tensor, in one message per dtype.
  Work broadcast_coalesced(
      const std::vector<at::Tensor>& tensors,
      int64_t root,
      std::string_view name = {});

  /// The recorded collectives of this group, newest last.
  FlightRecorder& flight_recorder() const;

  /// Fails the running operations and every later call with CommError.
  void abort();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

} // namespace weft::mesh
