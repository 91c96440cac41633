#include "mesh/backends/nccl_backend.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "mesh/backends/c10d_calls.h"
#include "mesh/communicator/reduction.h"
#include "mesh/error/failure.h"

// Note [Streams]
// ~~~~~~~~~~~~~~
// c10d starts a collective on the group's own stream, which first waits for the
// work that the caller's current stream has queued. Work::wait() makes the
// current stream wait for the collective. The host blocks in neither. So:
//  - A BackendWork keeps the tensors of its collective until wait() has run,
//    and records them with the stream that waited. If they are freed after
//    that, the allocator reuses their memory only behind the wait. A
//    BackendWork that is destroyed without wait() waits in its destructor.
//  - The host does not learn the outcome from wait(). If a collective fails
//    later (a peer is gone, or the timeout has passed), c10d's watchdog records
//    the error first and then ends the kernels. So a caller that has read a
//    value from the device calls failure() afterwards, and uses the value only
//    if failure() is empty.
//  - The device signals the end of an operation itself, through a host function
//    on a side stream (DevicePlugin::call_after). This needs neither a
//    synchronization of the device nor polling by the host.

// Note [How messages travel over NCCL]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// NCCL runs all_reduce, broadcast and all_gather of equal parts. An all_gather
// of uneven parts pads them if that adds at most a quarter (pads_all_gather()).
// Otherwise grouped sends move each part directly to its place. reduce_scatter
// sends each part to its owner, which adds in rank order and accumulates half
// precision in float. The result has the same bits as on the CPU, whatever
// algorithm NCCL would have chosen. Within a host this moves as much data as
// NCCL's ring, and it needs a buffer of the input's size. Between hosts with
// many ranks each, a ring would cross the network less often. Dtypes that NCCL
// cannot reduce (bool, short, complex) are exchanged and reduced in the same
// way.

namespace weft::mesh {

bool pads_all_gather(const Backend::Counts& counts) {
  const int64_t largest = *std::max_element(counts.begin(), counts.end());
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto size = static_cast<int64_t>(counts.size());
  return 4 * size * largest <= 5 * sum;
}

namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/// The completion of an operation on the device, with at most one callback.
class Completion {
 public:
  void set() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      is_set_ = true;
      callback.swap(callback_);
    }
    if (callback) {
      callback();
    }
  }
  void then(std::function<void()> callback) {
    {
      const std::lock_guard lock(mutex_);
      if (!is_set_) {
        callback_ = std::move(callback);
        return;
      }
    }
    callback();
  }
  bool is_set() const {
    const std::lock_guard lock(mutex_);
    return is_set_;
  }

 private:
  mutable std::mutex mutex_;
  bool is_set_ = false;
  std::function<void()> callback_;
};

/// Records that the current stream uses the tensors, so that the allocator does
/// not reuse their memory before the stream is done with them.
void record_current_stream(const Tensors& tensors) {
  for (const auto& tensor : tensors) {
    if (tensor.is_cuda() && tensor.numel() > 0) {
      const auto* guard = c10::impl::getDeviceGuardImpl(tensor.device().type());
      tensor.record_stream(guard->getStream(tensor.device()));
    }
  }
}

class NcclWork final : public BackendWork {
 public:
  NcclWork(
      WorkPointer work,
      Tensors tensors,
      std::shared_ptr<Completion> completion,
      std::function<void()> finish)
      : work_(std::move(work)),
        tensors_(std::move(tensors)),
        completion_(std::move(completion)),
        finish_(std::move(finish)) {}
  NcclWork(const NcclWork&) = delete;
  NcclWork& operator=(const NcclWork&) = delete;
  ~NcclWork() override {
    if (!waited_) {
      try {
        join_stream();
      } catch (...) { // The next call on the group throws the error.
      }
    }
  }

  void wait() override {
    join_stream();
    if (finish_) {
      finish_();
    }
  }
  bool is_completed() const override {
    return completion_->is_set() || work_->isCompleted();
  }
  bool when_completed(std::function<void()> callback) override {
    completion_->then(std::move(callback));
    return true;
  }
  bool is_on_device() const override { return true; }

 private:
  void join_stream() {
    waited_ = true;
    work_->wait();
    record_current_stream(tensors_);
  }

  WorkPointer work_;
  Tensors tensors_;
  std::shared_ptr<Completion> completion_;
  std::function<void()> finish_;
  bool waited_ = false;
};

class NcclBackend final : public Backend {
 public:
  NcclBackend(
      GroupMembers members,
      c10::intrusive_ptr<c10d::Backend> group,
      c10::Device device,
      const DevicePlugin& plugin)
      : Backend(std::move(members)),
        group_(std::move(group)),
        device_(device),
        plugin_(plugin),
        side_stream_(plugin.make_side_stream(device.index())) {}
  ~NcclBackend() override { close(); }

  std::string_view kind() const override { return "nccl"; }
  bool supports(c10::DeviceType device) const override {
    return device == device_.type();
  }

  std::unique_ptr<BackendWork> all_reduce(const at::Tensor& tensor, ReduceOp op)
      override {
    if (!is_reducible(tensor.scalar_type())) {
      return exchange_and_reduce(tensor, op);
    }
    Tensors tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op);
    if (op == ReduceOp::kAvg) {
      options.reduceOp = c10d::ReduceOp::AVG;
    }
    auto work = group_->allreduce(tensors, options);
    return pending(std::move(work), std::move(tensors));
  }

  std::unique_ptr<BackendWork> all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) override {
    const bool even =
        std::all_of(counts.begin(), counts.end(), [&](int64_t count) {
          return count == counts.front();
        });
    if (even) {
      return pending(
          start_all_gather(*group_, bytes_of(output), bytes_of(input)),
          {output, input});
    }
    return pads_all_gather(counts) ? gather_padded(output, input, counts)
                                   : gather_directly(output, input, counts);
  }

  std::unique_ptr<BackendWork> reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts,
      ReduceOp op) override {
    const at::Tensor parts =
        at::empty({size(), output.numel()}, output.options());
    auto work = start_all_to_all(
        *group_,
        bytes_of(parts.view({-1})),
        bytes_of(input),
        byte_counts(Counts(counts.size(), output.numel()), output),
        byte_counts(counts, input));
    return pending(std::move(work), {parts, input}, [this, output, parts, op] {
      reduce(output, parts, op);
    });
  }

  std::unique_ptr<BackendWork> all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& output_counts,
      const Counts& input_counts) override {
    auto work = start_all_to_all(
        *group_,
        bytes_of(output),
        bytes_of(input),
        byte_counts(output_counts, output),
        byte_counts(input_counts, input));
    return pending(std::move(work), {output, input});
  }

  std::unique_ptr<BackendWork> broadcast(const at::Tensor& tensor, int64_t root)
      override {
    Tensors tensors{bytes_of(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    auto work = group_->broadcast(tensors, options);
    return pending(std::move(work), std::move(tensors));
  }

  std::unique_ptr<BackendWork> barrier() override {
    c10d::BarrierOptions options;
    if (device_.has_index()) { // Otherwise c10d derives it from the rank.
      options.device_ids = {device_.index()};
      options.device = device_;
    }
    return pending(group_->barrier(options), {});
  }

  void abort() noexcept override {
    is_aborted_ = true;
    try {
      group_->abort();
    } catch (...) { // The group is gone already.
    }
  }

  GroupFailure failure() const override {
    switch (group_->getError()) {
      case c10d::ErrorType::SUCCESS:
        return {};
      case c10d::ErrorType::TIMEOUT:
        return {
            .reason = "Timed out after " + format_seconds(members().timeout) +
                      "; not all ranks took part",
            .is_timeout = true};
      case c10d::ErrorType::REMOTE_ERROR:
        return {"A peer failed"};
      default:
        return {"NCCL failed: a peer is gone, or the network failed"};
    }
  }

 private:
  std::unique_ptr<BackendWork> pending(
      WorkPointer work,
      Tensors tensors,
      std::function<void()> finish = {}) {
    auto completion = std::make_shared<Completion>();
    ++*under_way_;
    plugin_.call_after(
        *work, side_stream_, [completion, under_way = under_way_] {
          --*under_way;
          completion->set();
        });
    return std::make_unique<NcclWork>(
        std::move(work),
        std::move(tensors),
        std::move(completion),
        std::move(finish));
  }

  void reduce(const at::Tensor& output, const at::Tensor& parts, ReduceOp op)
      const {
    if (!plugin_.reduce_rows(output, parts, op)) {
      reduce_rows(output, parts, op);
    }
  }

  std::unique_ptr<BackendWork> gather_padded(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) {
    const int64_t largest = *std::max_element(counts.begin(), counts.end());
    const at::Tensor all = at::empty({size(), largest}, output.options());
    at::Tensor own = input;
    if (input.numel() < largest) {
      own = at::empty({largest}, input.options());
      own.narrow(0, 0, input.numel()).copy_(input);
    }
    auto work =
        start_all_gather(*group_, bytes_of(all.view({-1})), bytes_of(own));
    return pending(std::move(work), {all, own}, [output, all, counts] {
      int64_t offset = 0;
      for (size_t r = 0; r < counts.size(); ++r) {
        output.narrow(0, offset, counts[r])
            .copy_(all[static_cast<int64_t>(r)].narrow(0, 0, counts[r]));
        offset += counts[r];
      }
    });
  }

  std::unique_ptr<BackendWork> gather_directly(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) {
    Tensors outputs;
    Tensors inputs(counts.size(), bytes_of(input));
    int64_t offset = 0;
    for (const int64_t count : counts) {
      outputs.push_back(bytes_of(output.narrow(0, offset, count)));
      offset += count;
    }
    auto work = group_->alltoall(outputs, inputs);
    return pending(std::move(work), {output, input});
  }

  std::unique_ptr<BackendWork> exchange_and_reduce(
      const at::Tensor& tensor,
      ReduceOp op) {
    const at::Tensor parts =
        at::empty({size(), tensor.numel()}, tensor.options());
    auto work =
        start_all_gather(*group_, bytes_of(parts.view({-1})), bytes_of(tensor));
    return pending(std::move(work), {parts, tensor}, [this, tensor, parts, op] {
      reduce(tensor, parts, op);
    });
  }

  // Closes the group. If no operation is running, shutdown() lets the last
  // messages leave and frees the group. Otherwise a peer may never arrive, so
  // abort() ends the group without waiting.
  void close() noexcept {
    constexpr auto kPatience = std::chrono::seconds(2);
    if (is_aborted_) {
      return;
    }
    try {
      const auto start = std::chrono::steady_clock::now();
      while (*under_way_ > 0 &&
             std::chrono::steady_clock::now() - start < kPatience) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (*under_way_ == 0 && failure().reason.empty()) {
        group_->shutdown();
      } else {
        group_->abort();
      }
    } catch (...) { // A destructor cannot report the error.
    }
  }

  c10::intrusive_ptr<c10d::Backend> group_;
  c10::Device device_;
  const DevicePlugin& plugin_;
  std::shared_ptr<void> side_stream_;
  std::shared_ptr<std::atomic<int64_t>> under_way_ =
      std::make_shared<std::atomic<int64_t>>(0);
  std::atomic<bool> is_aborted_ = false;
};

} // namespace

std::shared_ptr<Backend> connect_nccl_backend(
    const GroupMembers& members,
    std::string name,
    c10::intrusive_ptr<c10d::Store> store,
    c10::Device device,
    const DevicePlugin& plugin) {
  auto group = plugin.make_group(
      {.store = std::move(store),
       .name = std::move(name),
       .rank = members.rank,
       .size = static_cast<int64_t>(members.ranks.size()),
       .timeout = members.timeout,
       .device = device.index()});
  return make_nccl_backend(members, std::move(group), device, plugin);
}

std::shared_ptr<Backend> make_nccl_backend(
    GroupMembers members,
    c10::intrusive_ptr<c10d::Backend> group,
    c10::Device device,
    const DevicePlugin& plugin) {
  return std::make_shared<NcclBackend>(
      std::move(members), std::move(group), device, plugin);
}

} // namespace weft::mesh
