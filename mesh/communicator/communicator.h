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

/// How a reduction combines what the ranks contribute.
enum class ReduceOp { kSum, kAvg, kMin, kMax, kProduct };

/// A collective under way. Cheap to copy; all copies wait for the same one. On
/// a CUDA device "blocks" means that this thread's current stream waits, and
/// the host goes on.
/// Lifetime: keeps the tensors it reads and writes alive until it completed.
class Work {
 public:
  struct State;
  /// A collective that has completed.
  Work();
  explicit Work(std::shared_ptr<State> state);

  /// Blocks until the outputs hold the result; a second call returns at once.
  /// Throws: CommError if the collective failed, timed out or lost a peer;
  /// DisagreementError if ranks called different things.
  void wait();
  bool is_completed() const;

 private:
  std::shared_ptr<State> state_;
};

/// One group of ranks and its collectives: the only way to the wire. Cheap to
/// copy; copies share the group, its order of calls and its ledger.
///
/// A group serves one caller. Several threads of a rank may use it only where
/// the program orders their calls: one was joined before the other was started,
/// autograd's threads run backward for the caller, or CallerScope
/// (mesh/communicator/caller.h) says so. Threads whose order chance decides
/// each need a group of their own (World::make_group(),
/// DeviceMesh::from_group()); on one group they fail.
///
/// Every method below is collective over the group: all its ranks call the
/// same methods in the same order with the same dtype, and with matching
/// sizes. Each starts the operation and returns; the result is valid after
/// Work::wait(). Tensors may be non-contiguous unless said otherwise. A group
/// of one rank never communicates, tensors without elements are not sent, and
/// neither leaves a ledger entry. `name` says in the ledger and in errors what
/// is moved (a parameter's or module's name), the same on all ranks.
/// Throws: c10::ValueError for wrong arguments, before anything is sent;
/// DisagreementError, on all ranks, if they call different things or threads
/// call in no order that they share; CommError once the group has failed.
class Communicator {
 public:
  /// `watch` looks after the group, which it knows as `key`; null: nobody does.
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
  int64_t size() const;
  /// The group's name, e.g. "tp/1".
  const std::string& name() const;
  /// "gloo", "nccl" (with gloo beside it for tensors of the CPU) or "fake"; a
  /// group of one is "self".
  std::string_view backend() const;
  /// World ranks of the group's members, in group order.
  const std::vector<int64_t>& ranks() const;

  /// Reduces `tensor` over the group, in place; all ranks get the same bits.
  /// Booleans sum as "or" and multiply as "and".
  Work all_reduce(
      const at::Tensor& tensor,
      ReduceOp op = ReduceOp::kSum,
      std::string_view name = {});

  /// Gathers equal parts: output [size * n] receives rank r's input [n]
  /// (numel, dense) at r * n.
  /// Shapes: output.numel() == size() * input.numel(); output contiguous.
  Work all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      std::string_view name = {});

  /// Gathers parts of different sizes: outputs[r] receives rank r's input.
  /// Shapes: outputs[r] has the shape of rank r's input; empty parts are fine.
  Work all_gather_uneven(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      std::string_view name = {});

  /// Reduces `input` over the group and keeps this rank's equal part. Values
  /// are added in rank order, halves and bfloat16 in float.
  /// Shapes: input.numel() == size() * output.numel(); output contiguous.
  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op = ReduceOp::kSum,
      std::string_view name = {});

  /// As reduce_scatter, with parts of different sizes: rank r keeps the
  /// reduction of every rank's inputs[r].
  Work reduce_scatter_uneven(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      ReduceOp op = ReduceOp::kSum,
      std::string_view name = {});

  /// inputs[r] goes to rank r; outputs[r] comes from rank r. Any sizes, empty
  /// ones too; outputs[r] here has the numel of inputs[rank()] on rank r.
  Work all_to_all(
      const std::vector<at::Tensor>& outputs,
      const std::vector<at::Tensor>& inputs,
      std::string_view name = {});

  /// Overwrites `tensor` with rank `root`'s (a group rank).
  Work
  broadcast(const at::Tensor& tensor, int64_t root, std::string_view name = {});

  /// Blocks until every rank of the group has called it.
  void barrier(std::string_view name = {});

  /// A collective on a device may fail after wait() has returned: to be called
  /// once values that depend on one have been read on the host, before they
  /// are trusted.
  /// Throws: CommError if one failed.
  void check() const;

  /// One message for many tensors. Tensors of one call may differ in shape and
  /// dtype; each dtype is one message.
  Work all_reduce_coalesced(
      const std::vector<at::Tensor>& tensors,
      ReduceOp op = ReduceOp::kSum,
      std::string_view name = {});
  Work all_gather_coalesced(
      const std::vector<at::Tensor>& outputs,
      const std::vector<at::Tensor>& inputs,
      std::string_view name = {});
  Work reduce_scatter_coalesced(
      const std::vector<at::Tensor>& outputs,
      const std::vector<at::Tensor>& inputs,
      ReduceOp op = ReduceOp::kSum,
      std::string_view name = {});
  Work broadcast_coalesced(
      const std::vector<at::Tensor>& tensors,
      int64_t root,
      std::string_view name = {});

  /// What was called on this group, newest last.
  FlightRecorder& flight_recorder() const;

  /// Fails what is under way and every later call with CommError.
  void abort();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

} // namespace weft::mesh
