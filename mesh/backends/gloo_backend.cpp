#include "mesh/backends/gloo_backend.h"

#include <csignal>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/backends/c10d_calls.h"
#include "mesh/communicator/reduction.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"

namespace weft::mesh {

struct GlooDevice {
  std::shared_ptr<::gloo::transport::Device> device;
};

namespace {

// Note [A message that gloo does not end]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// When a connection closes, gloo fails the waits for messages that have not
// begun. The wait for a message that is partly sent or received lasts until its
// timeout (Pair::signalException in gloo/transport/tcp/pair.cc). So
// wait_until() gives up kLastWrites after the group was hung up. gloo does not
// write to the tensors after that: its connections are closed, and a worker
// thread that is reducing fails at its next message. Destroying the group
// blocks until gloo's own wait ends, so another thread destroys it.

constexpr std::chrono::milliseconds kLastWrites{500};

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
/// Guards libtorch's flight recorder. Versions before 2.15 add a new group to a
/// map of the process without a lock (recordWithResetEnabled() in
/// torch/csrc/distributed/c10d/FlightRecorderDetail.hpp).
std::mutex recorder_mutex;
#endif

class Group final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  // Calls `start`, which sends a message with the tag `tag`. gloo matches
  // messages by tag, and ends the process of a rank that receives more bytes
  // than its buffer holds. So messages of different calls must have different
  // tags.
  template <class Start>
  auto with_tag(uint32_t tag, const Start& start) {
    const std::lock_guard lock(tag_mutex_);
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
    const std::lock_guard recorder_lock(recorder_mutex);
#endif
    collectiveCounter_ = tag;
    return start(*this);
  }

  // Closes all connections and wakes the threads that wait. gloo's
  // closeConnections() would leave a thread that waits for a message waiting
  // until its timeout. So this fails every connection, as gloo does after a
  // timeout; the peers notice the closed sockets.
  void hang_up() noexcept {
    for (const auto& context : contexts_) {
      for (int peer = 0; peer < getSize(); ++peer) {
        if (peer != getRank()) {
          hang_up(*context, peer);
        }
      }
    }
    const std::lock_guard lock(waits_->mutex);
    waits_->is_hung_up = true;
    waits_->changed.notify_all();
  }

  /// Waits for the end of `work`; see Note [A message that gloo does not end].
  void wait_for(c10d::Work& work) {
    const auto future = work.getFuture();
    if (!future->completed()) {
      future->addCallback(
          [waits = waits_](c10::ivalue::Future&) { waits->wake(); });
      wait_until([&](bool /*is_hung_up*/) { return future->completed(); });
    }
    work.wait();
  }
  /// Blocks until `has_ended` returns true, and calls it after every wake().
  /// Its argument is true if the group was hung up. Throws: CommError if it
  /// still returns false kLastWrites after hang_up().
  template <class HasEnded>
  void wait_until(const HasEnded& has_ended) {
    std::unique_lock lock(waits_->mutex);
    waits_->changed.wait(
        lock, [&] { return waits_->is_hung_up || has_ended(false); });
    if (!waits_->changed.wait_for(
            lock, kLastWrites, [&] { return has_ended(waits_->is_hung_up); })) {
      waits_->has_unended = true;
      throw_error<CommError>("The group was aborted");
    }
  }
  void wake() {
    waits_->wake();
  }
  bool is_hung_up() const {
    const std::lock_guard lock(waits_->mutex);
    return waits_->is_hung_up;
  }

  /// Destroys the group. Uses another thread if gloo still waits for a message,
  /// because the destructor would block, and on one of gloo's own threads,
  /// because the destructor joins them.
  static void destroy(c10::intrusive_ptr<Group> group) {
    if (!group->has_unended() && !group->is_on_own_thread()) {
      return;
    }
    try {
      std::thread([last = std::move(group)] {}).detach();
    } catch (const std::exception&) {
      // No thread could start, so this one destroys the group and waits.
    }
  }

 private:
  struct Waits {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_hung_up = false;
    /// True if wait_until() gave up on a message that gloo still waits for.
    bool has_unended = false;

    void wake() {
      const std::lock_guard lock(mutex);
      changed.notify_all();
    }
  };

  bool is_on_own_thread() const {
    return std::any_of(
        threads_.begin(), threads_.end(), [](const std::thread& thread) {
          return thread.get_id() == std::this_thread::get_id();
        });
  }

  bool has_unended() const {
    const std::lock_guard lock(waits_->mutex);
    return waits_->has_unended;
  }

  static void hang_up(::gloo::Context& context, int peer) noexcept {
    try {
      auto* pair = context.getPair(peer).get();
      reinterpret_cast<::gloo::transport::tcp::Pair*>(pair)
          ->signalExceptionExternal("The group was aborted");
    } catch (...) { // The connection is closed already.
    }
  }

  std::mutex tag_mutex_;
  /// Shared with callbacks, which may run after the group is destroyed.
  std::shared_ptr<Waits> waits_ = std::make_shared<Waits>();
};

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

class GlooWork final : public BackendWork {
 public:
  GlooWork(
      std::shared_ptr<Group> group,
      Works works,
      std::function<void()> finish)
      : group_(std::move(group)),
        works_(std::move(works)),
        finish_(std::move(finish)) {}

  // A failure of one message hangs up the group, which ends the other messages.
  // This waits for all of them, because gloo may write to the tensors until
  // they end.
  void wait() override {
    std::exception_ptr error;
    for (const auto& work : works_) {
      try {
        group_->wait_for(*work);
      } catch (...) {
        if (!error) {
          error = std::current_exception();
          group_->hang_up();
        }
      }
    }
    if (error) {
      std::rethrow_exception(error);
    }
    if (finish_) {
      finish_();
    }
  }
  bool is_completed() const override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) {
      return work->isCompleted();
    });
  }
  bool when_completed(std::function<void()> callback) override {
    if (finish_ || works_.size() != 1) {
      return false;
    }
    works_.front()->getFuture()->addCallback(
        [callback = std::move(callback)](c10::ivalue::Future&) { callback(); });
    return true;
  }

 private:
  std::shared_ptr<Group> group_;
  Works works_;
  std::function<void()> finish_;
};

// Note [One all_to_all at a time]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// An all_to_all is two messages: the byte counts, then the payload. A rank
// starts the payload when the counts have arrived, at a time that differs
// between ranks, and never if the counts do not match. But gloo has two threads
// for the messages of a group. They take messages in the order of their start,
// and each message occupies its thread until it ends. If payloads of two calls
// occupied both threads of one rank, and payloads of two other calls those of
// another rank, all would wait forever. So a group runs one all_to_all at a
// time and starts later ones after it. The other thread remains for all other
// messages, which every rank starts in the same order.

/// A queue that starts each all_to_all of a group when the previous one has
/// ended.
class AllToAllQueue {
 public:
  /// Calls `start` now, or later on the thread that calls end(). Every `start`
  /// must lead to one call of end().
  void begin(std::function<void()> start) {
    {
      const std::lock_guard lock(mutex_);
      if (is_busy_) {
        waiting_.push_back(std::move(start));
        return;
      }
      is_busy_ = true;
    }
    start();
  }
  void end() {
    std::function<void()> next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) {
        is_busy_ = false;
        return;
      }
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next();
  }

 private:
  std::mutex mutex_;
  bool is_busy_ = false;
  std::deque<std::function<void()>> waiting_;
};

/// An all_to_all of bytes. Each rank knows what it sends to each rank and what
/// it expects from each. See Note [One all_to_all at a time].
class AllToAllWork final : public BackendWork {
 public:
  struct Call {
    at::Tensor output;
    at::Tensor input;
    /// The bytes that this rank expects from each rank and sends to each rank.
    std::vector<int64_t> wanted;
    std::vector<int64_t> sent;
    uint32_t counts_tag = 0;
    uint32_t payload_tag = 0;
  };

  AllToAllWork(
      std::shared_ptr<Group> group,
      const std::shared_ptr<AllToAllQueue>& queue,
      Call call)
      : state_(
            std::make_shared<State>(std::move(group), queue, std::move(call))) {
    queue->begin([state = state_] { send_counts(state); });
  }

  void wait() override {
    auto& group = *state_->group;
    group.wait_until(
        [this](bool is_hung_up) { return state_->is_known(is_hung_up); });
    const auto payload = [this] {
      const std::lock_guard lock(state_->mutex);
      if (state_->error) {
        std::rethrow_exception(state_->error);
      }
      if (!state_->payload) {
        throw_error<CommError>("The group was aborted");
      }
      return state_->payload;
    }();
    group.wait_for(*payload);
  }
  bool is_completed() const override {
    const std::lock_guard lock(state_->mutex);
    return state_->error || (state_->payload && state_->payload->isCompleted());
  }
  bool when_completed(std::function<void()> /*callback*/) override {
    return false;
  }

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  struct State {
    State(
        std::shared_ptr<Group> its_group,
        std::shared_ptr<AllToAllQueue> its_queue,
        Call its_call)
        : group(std::move(its_group)),
          queue(std::move(its_queue)),
          call(std::move(its_call)) {}

    const std::shared_ptr<Group> group;
    const std::shared_ptr<AllToAllQueue> queue;
    const Call call;
    std::mutex mutex;
    bool is_started = false;
    /// decide() sets one of these two, when the counts have arrived or failed.
    WorkPtr payload;
    std::exception_ptr error;

    /// Returns true if the payload was started, or never will be.
    bool is_known(bool is_hung_up) {
      const std::lock_guard lock(mutex);
      return payload || error || (is_hung_up && !is_started);
    }
    void begin() {
      if (group->is_hung_up()) {
        throw_error<CommError>("The group was aborted");
      }
      const std::lock_guard lock(mutex);
      is_started = true;
    }
    void decide(const WorkPtr& work, const std::exception_ptr& cause) {
      {
        const std::lock_guard lock(mutex);
        payload = work;
        error = cause;
      }
      group->wake();
    }
  };
  using StatePtr = std::shared_ptr<State>;

  static void fail(const StatePtr& state) {
    state->decide(nullptr, std::current_exception());
    state->queue->end();
  }

  // Exchanges the byte counts, because a rank does not know what its peers
  // send. The payload follows if the counts match.
  static void send_counts(const StatePtr& state) {
    try {
      state->begin();
      const auto sent = at::tensor(state->call.sent, at::kLong);
      const auto received = at::empty_like(sent);
      const std::vector<int64_t> each(state->call.sent.size(), sizeof(int64_t));
      const auto work =
          state->group->with_tag(state->call.counts_tag, [&](Group& group) {
            return start_all_to_all(
                group, bytes_of(received), bytes_of(sent), each, each);
          });
      work->getFuture()->addCallback(
          [state, received](c10::ivalue::Future& counts) {
            send_payload(state, counts, received);
          });
    } catch (...) {
      fail(state);
    }
  }

  static void send_payload(
      const StatePtr& state,
      const c10::ivalue::Future& counts,
      const at::Tensor& received) {
    try {
      if (counts.hasError()) {
        std::rethrow_exception(counts.exception_ptr());
      }
      const Call& call = state->call;
      check_counts(received, call.wanted);
      const auto payload =
          state->group->with_tag(call.payload_tag, [&](Group& group) {
            return start_all_to_all(
                group, call.output, call.input, call.wanted, call.sent);
          });
      state->decide(payload, nullptr);
      payload->getFuture()->addCallback(
          [queue = state->queue](c10::ivalue::Future&) { queue->end(); });
    } catch (...) {
      fail(state);
    }
  }

  static void check_counts(
      const at::Tensor& received,
      const std::vector<int64_t>& wanted) {
    for (size_t rank = 0; rank < wanted.size(); ++rank) {
      const auto sent = received[static_cast<int64_t>(rank)].item<int64_t>();
      if (sent != wanted[rank]) {
        throw_error<CommError>(detail::concat(
            "Rank ",
            rank,
            " of the group sends ",
            sent,
            " bytes, ",
            wanted[rank],
            " are expected"));
      }
    }
  }

  StatePtr state_;
};

// Note [How messages travel over gloo]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// If a rank receives at most kSmallBytes, an all_to_all of copies is the
// fastest all_reduce and all_gather: it takes one step, while gloo's ring takes
// size() - 1 steps or twice as many (2 ranks on loopback, 1 KB: 0.11 ms against
// 0.23 ms). Above this limit, an all_gather is one broadcast from every rank
// directly into its place in the output; gloo's own all_gather uses a buffer of
// its own first. Both accept parts of different sizes. The limit decides the
// order of additions, so it is a constant and not an option.
constexpr int64_t kSmallBytes = int64_t{256} * 1024;

int64_t bytes_in(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

class GlooBackend final : public Backend {
 public:
  GlooBackend(GroupMembers members, std::shared_ptr<Group> group)
      : Backend(std::move(members)), group_(std::move(group)) {}

  std::string_view kind() const override { return "gloo"; }
  bool supports(c10::DeviceType device) const override {
    return device == c10::DeviceType::CPU;
  }

  std::unique_ptr<BackendWork> all_reduce(const at::Tensor& tensor, ReduceOp op)
      override {
    if (size() * bytes_in(tensor) <= kSmallBytes ||
        !is_reducible(tensor.scalar_type())) {
      return exchange_and_reduce(tensor, op);
    }
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op);
    auto work =
        start([&](Group& group) { return group.allreduce(tensors, options); });
    if (op != ReduceOp::kAvg) {
      return pending(std::move(work));
    }
    return pending(std::move(work), [tensor, n = size()] { tensor.div_(n); });
  }

  std::unique_ptr<BackendWork> all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) override {
    if (bytes_in(output) <= kSmallBytes) {
      return pending(exchange(
          bytes_of(output),
          bytes_of(input.repeat({size()})),
          byte_counts(counts, output),
          byte_counts(Counts(counts.size(), input.numel()), input)));
    }
    Works works;
    int64_t offset = 0;
    for (int64_t root = 0; root < size(); ++root) {
      const at::Tensor part = output.narrow(0, offset, counts[root]);
      offset += counts[root];
      if (root == rank()) {
        part.copy_(input);
      }
      if (part.numel() > 0) {
        works.push_back(start_broadcast(part, root));
      }
    }
    return std::make_unique<GlooWork>(
        group_, std::move(works), std::function<void()>());
  }

  // PyTorch's reduce_scatter over gloo is an all_reduce of everything. Sending
  // each part to its owner moves half of that and lets the owner add in rank
  // order, so that a result does not depend on its place in the buffer.
  std::unique_ptr<BackendWork> reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts,
      ReduceOp op) override {
    const at::Tensor parts =
        at::empty({size(), output.numel()}, output.options());
    auto work = exchange(
        bytes_of(parts.view({-1})),
        bytes_of(input),
        byte_counts(Counts(counts.size(), output.numel()), output),
        byte_counts(counts, input));
    return pending(std::move(work), [output, parts, op] {
      reduce_rows(output, parts, op);
    });
  }

  std::unique_ptr<BackendWork> all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& output_counts,
      const Counts& input_counts) override {
    AllToAllWork::Call call{
        .output = bytes_of(output),
        .input = bytes_of(input),
        .wanted = byte_counts(output_counts, output),
        .sent = byte_counts(input_counts, input)};
    call.counts_tag = next_tag();
    call.payload_tag = next_tag();
    return std::make_unique<AllToAllWork>(
        group_, all_to_alls_, std::move(call));
  }

  std::unique_ptr<BackendWork> broadcast(const at::Tensor& tensor, int64_t root)
      override {
    return pending(start_broadcast(tensor, root));
  }

  std::unique_ptr<BackendWork> barrier() override {
    return pending(start([](Group& group) { return group.barrier(); }));
  }

  void abort() noexcept override { group_->hang_up(); }

 private:
  std::unique_ptr<BackendWork> pending(
      c10::intrusive_ptr<c10d::Work> work,
      std::function<void()> finish = {}) const {
    return std::make_unique<GlooWork>(
        group_, Works{std::move(work)}, std::move(finish));
  }

  /// Returns a tag made of the message's number and a hash of the call, so that
  /// messages of different calls do not match.
  uint32_t next_tag() {
    constexpr uint32_t kNumberBits = 12;
    constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;
    const uint32_t number = next_message_++;
    return (number << (32 - kNumberBits)) |
           static_cast<uint32_t>((identity() * kSpread) >> (32 + kNumberBits));
  }

  template <class Start>
  c10::intrusive_ptr<c10d::Work> start(const Start& start) {
    return group_->with_tag(next_tag(), start);
  }

  /// Starts an all_to_all of bytes whose counts all ranks know.
  c10::intrusive_ptr<c10d::Work> exchange(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& output_counts,
      const Counts& input_counts) {
    return start([&](Group& group) {
      return start_all_to_all(
          group, output, input, output_counts, input_counts);
    });
  }

  c10::intrusive_ptr<c10d::Work> start_broadcast(
      const at::Tensor& tensor,
      int64_t root) {
    std::vector<at::Tensor> tensors{bytes_of(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return start(
        [&](Group& group) { return group.broadcast(tensors, options); });
  }

  std::unique_ptr<BackendWork> exchange_and_reduce(
      const at::Tensor& tensor,
      ReduceOp op) {
    const at::Tensor parts =
        at::empty({size(), tensor.numel()}, tensor.options());
    const Counts counts = byte_counts(Counts(size(), tensor.numel()), tensor);
    auto work = exchange(
        bytes_of(parts.view({-1})),
        bytes_of(tensor.repeat({size()})),
        counts,
        counts);
    return pending(std::move(work), [tensor, parts, op] {
      reduce_rows(tensor, parts, op);
    });
  }

  std::shared_ptr<Group> group_;
  std::shared_ptr<AllToAllQueue> all_to_alls_ =
      std::make_shared<AllToAllQueue>();
  std::atomic<uint32_t> next_message_ = 0;
};

// gloo writes to its sockets in a way that raises SIGPIPE once the peer is
// gone, which would end this process instead of failing a collective. A handler
// that the program set stays.
void ignore_broken_pipes() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 &&
      current.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

} // namespace

std::shared_ptr<GlooDevice> make_gloo_device(const std::string& address) {
  ignore_broken_pipes();
  try {
    return std::make_shared<GlooDevice>(
        c10d::ProcessGroupGloo::createDeviceForHostname(address));
  } catch (const std::exception& cause) {
    rethrow_if_out_of_memory(cause);
    throw_error<CommError>(detail::concat(
        "[rendezvous] cannot listen at ", address, ": ", cause.what()));
  }
}

std::shared_ptr<Backend> make_gloo_backend(
    GroupMembers members,
    const GroupRendezvous& rendezvous,
    const std::shared_ptr<GlooDevice>& device) {
  // gloo cannot cancel a connect to a peer that does not respond, so it runs on
  // a thread that a cancellation leaves behind.
  auto group = rendezvous.cancellation.run(
      [store = rendezvous.store,
       device = device->device,
       rank = static_cast<int>(members.rank),
       size = static_cast<int>(members.ranks.size()),
       timeout = members.timeout] {
        auto options = c10d::ProcessGroupGloo::Options::create(timeout);
        options->devices.push_back(device);
        return c10::make_intrusive<Group>(
            store, rank, size, std::move(options));
      });
  auto* shared = group.get();
  return std::make_shared<GlooBackend>(
      std::move(members),
      std::shared_ptr<Group>(
          shared, [group = std::move(group)](Group*) mutable {
            Group::destroy(std::move(group));
          }));
}

} // namespace weft::mesh
