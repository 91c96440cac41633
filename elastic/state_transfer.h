#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "elastic/shared_state.h"
#include "mesh/communicator/communicator.h"

namespace weft::elastic {

/// Sends the state of one rank to other ranks, in slices, on a thread of its
/// own, while the ranks compute. What is received takes memory of its own until
/// load(). A hash of all slices is compared on both sides. Then the thread
/// sends other tensors of the step. It has the lowest priority, and so takes
/// the processor time that computing threads leave.
class StateTransfer {
 public:
  /// Memory for what is received.
  using Buffers = std::vector<at::Tensor>;

  /// Returns memory that has been written to, so that a transfer into it costs
  /// no page faults, which take longer than the transfer.
  static Buffers make_buffers(const SharedState& state);

  /// Starts the transfer from rank 0 of `group` to all its other ranks. The
  /// group serves this object alone. `state` must outlive it, and its tensors
  /// must not change on rank 0 before wait() has ended. `buffers` are those of
  /// make_buffers(); without any they are made in the course of the transfer.
  /// Collective: the ranks of `group`.
  StateTransfer(
      const SharedState& state,
      mesh::Communicator group,
      Buffers buffers = {});
  /// Ends what is under way, on all ranks.
  ~StateTransfer();
  StateTransfer(const StateTransfer&) = delete;
  StateTransfer& operator=(const StateTransfer&) = delete;

  /// Blocks until the state has arrived.
  /// Throws: mesh::CommError if a rank was lost, or if what arrived differs
  /// from what was sent.
  void wait() { arrived_.get(); }
  /// Sends `tensor` from rank 0 to all others, after the state and after what
  /// was passed to earlier calls. Returns a function that blocks until it has
  /// arrived, and that throws mesh::CommError if a rank was lost. The tensor
  /// must not change until then.
  /// Collective: the ranks of the group, in the same order of calls.
  [[nodiscard]] std::function<void()> send(
      const at::Tensor& tensor,
      std::string_view name);
  /// Sends what has changed on rank 0 since it was sent, and replaces it on the
  /// others, after wait(). Blocks until it has arrived.
  /// Collective: the ranks of the group, in the order of send().
  /// Throws: mesh::CommError if a rank was lost, or if what arrived differs
  /// from what was sent; mesh::DisagreementError if the state has other tensors
  /// than before.
  void send_changes();
  bool sends() const { return group_.rank() == 0; }
  /// The size of the state, and how long the transfer took, after wait().
  int64_t bytes() const { return bytes_; }
  double milliseconds() const { return milliseconds_; }
  /// Makes what has arrived the state, after wait(). Does nothing on rank 0.
  /// Communicates nothing.
  void load();

 private:
  /// A task of the thread after it has sent the state.
  struct Message {
    std::function<void()> run;
    std::promise<void> sent;
  };

  void run();
  std::shared_future<void> enqueue(std::function<void()> run);
  void transfer_state();
  void check_hash(uint64_t sum);
  std::optional<Message> next_message();
  at::Tensor message_for(const at::Tensor& local);
  uint64_t transfer(const at::Tensor& message, const std::string& name);

  const SharedState& state_;
  mesh::Communicator group_;
  const SharedState::Tensors tensors_;
  Buffers buffers_;
  /// Each tensor of the state, and the memory to which its content came.
  std::vector<std::pair<at::Tensor, at::Tensor>> received_;
  /// Hashes of the tensors as they were sent.
  std::vector<uint64_t> hashes_;
  int64_t bytes_ = 0;
  double milliseconds_ = 0;
  std::promise<void> arrival_;
  std::shared_future<void> arrived_{arrival_.get_future()};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
  /// The number of messages that are not sent yet, and the state.
  int64_t pending_ = 1;
  bool is_closed_ = false;
  /// Why nothing more can be sent.
  std::exception_ptr error_;
  std::thread thread_;
};

} // namespace weft::elastic
