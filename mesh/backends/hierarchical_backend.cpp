#include "mesh/backends/hierarchical_backend.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "mesh/error/error.h"

// Note [One call after the other]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The stages of one call must not interleave with those of the next. Otherwise
// ranks that wait in different orders would call the subgroups in different
// orders. So a thread of the group runs one call after the other, in the order
// in which they were started.

namespace weft::mesh {
namespace {

struct Task {
  std::function<void()> run;
  std::function<void()> callback;
  std::exception_ptr error;
  bool done = false;
};

class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  // Finishes all tasks that were started, then ends the thread.
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  std::shared_ptr<Task> start(std::function<void()> run) {
    auto task = std::make_shared<Task>();
    task->run = std::move(run);
    const std::lock_guard lock(mutex_);
    tasks_.push_back(task);
    changed_.notify_all();
    return task;
  }
  void wait(const Task& task) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return task.done; });
    if (task.error) {
      std::rethrow_exception(task.error);
    }
  }
  bool is_done(const Task& task) {
    const std::lock_guard lock(mutex_);
    return task.done;
  }
  bool when_done(Task& task, std::function<void()> callback) {
    const std::lock_guard lock(mutex_);
    if (!task.done) {
      task.callback = std::move(callback);
    }
    return !task.done;
  }

 private:
  void work() {
    const at::NoGradGuard no_grad;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_over_ || !tasks_.empty(); });
      if (tasks_.empty()) {
        return;
      }
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      try {
        task->run();
      } catch (...) {
        task->error = std::current_exception();
      }
      task->run = nullptr;
      lock.lock();
      task->done = true;
      if (task->callback) {
        task->callback();
      }
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;
  bool is_over_ = false;
  std::thread thread_;
};

class WorkerThreadWork final : public BackendWork {
 public:
  WorkerThreadWork(std::shared_ptr<Worker> worker, std::shared_ptr<Task> task)
      : worker_(std::move(worker)), task_(std::move(task)) {}
  void wait() override { worker_->wait(*task_); }
  bool is_completed() const override { return worker_->is_done(*task_); }
  bool when_completed(std::function<void()> callback) override {
    return worker_->when_done(*task_, std::move(callback));
  }

 private:
  std::shared_ptr<Worker> worker_;
  std::shared_ptr<Task> task_;
};

void finish(const std::unique_ptr<BackendWork>& pending) {
  if (pending) {
    pending->wait();
  }
}

bool is_narrow(c10::ScalarType dtype) {
  return c10::isFloatingType(dtype) && c10::elementSize(dtype) < 4;
}

// The stages of every collective. The methods block. Only the worker thread
// calls them, except abort().
class Stages {
 public:
  using Counts = Backend::Counts;

  Stages(HostLayout layout, HostGroups groups)
      : layout_(std::move(layout)), groups_(std::move(groups)) {
    for (const auto& host : layout_.hosts) {
      order_.insert(order_.end(), host.begin(), host.end());
    }
  }

  void all_reduce(const at::Tensor& tensor, ReduceOp op) {
    const auto sum =
        is_narrow(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
    reduce_inside(sum, op);
    if (groups_.leaders) {
      finish(groups_.leaders->all_reduce(sum, without_average(op)));
    }
    if (op == ReduceOp::kAvg) {
      divide(sum);
    }
    spread(sum);
    if (!sum.is_same(tensor)) {
      tensor.copy_(sum);
    }
  }

  void all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) {
    const auto of_hosts = counts_of_hosts(counts);
    const auto whole = is_in_order() ? output : at::empty_like(output);
    const auto own = whole.narrow(
        0, begin_of(of_hosts, layout_.own_host), of_hosts[layout_.own_host]);
    if (groups_.inside) {
      finish(groups_.inside->all_gather(own, input, own_counts(counts)));
    } else {
      own.copy_(input);
    }
    if (groups_.leaders) {
      // `own` is a view of `whole`, so it is copied: input and output must not
      // overlap.
      finish(groups_.leaders->all_gather(whole, own.clone(), of_hosts));
    }
    spread(whole);
    if (!whole.is_same(output)) {
      from_host_order(output, whole, counts);
    }
  }

  void reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts,
      ReduceOp op) {
    const auto of_hosts = counts_of_hosts(counts);
    auto whole = in_host_order(input, counts);
    if (is_narrow(whole.scalar_type())) {
      whole = whole.to(at::kFloat);
    } else if (whole.is_same(input)) {
      whole = input.clone();
    }
    reduce_inside(whole, op);
    const auto part = at::empty({of_hosts[layout_.own_host]}, whole.options());
    if (groups_.leaders) {
      finish(groups_.leaders->reduce_scatter(
          part, whole, of_hosts, without_average(op)));
      if (op == ReduceOp::kAvg) {
        divide(part);
      }
    }
    spread(part);
    const auto own = own_counts(counts);
    output.copy_(part.narrow(
        0,
        begin_of(own, layout_.own_position),
        own[static_cast<size_t>(layout_.own_position)]));
  }

  void all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& output_counts,
      const Counts& input_counts) {
    finish(all()->all_to_all(output, input, output_counts, input_counts));
  }

  void broadcast(const at::Tensor& tensor, int64_t root) {
    const auto at = std::ranges::find_if(layout_.hosts, [&](const auto& host) {
      return std::ranges::find(host, root) != host.end();
    });
    const auto host = at - layout_.hosts.begin();
    if (host == layout_.own_host && groups_.inside) {
      const auto position = std::ranges::find(*at, root) - at->begin();
      finish(groups_.inside->broadcast(tensor, position));
    }
    if (groups_.leaders) {
      finish(groups_.leaders->broadcast(tensor, host));
    }
    if (host != layout_.own_host) {
      spread(tensor);
    }
  }

  void barrier() {
    for (const auto& group :
         {groups_.inside, groups_.leaders, groups_.inside}) {
      if (group) {
        finish(group->barrier());
      }
    }
  }

  void announce(uint64_t identity) {
    const std::lock_guard lock(mutex_);
    identity_ = identity;
    for (const auto& group : {groups_.inside, groups_.leaders, all_}) {
      if (group) {
        group->announce(identity);
      }
    }
  }

  void abort() noexcept {
    const std::lock_guard lock(mutex_);
    for (const auto& group : {groups_.inside, groups_.leaders, all_}) {
      if (group) {
        group->abort();
      }
    }
  }

 private:
  // Connects all members at the first call. Does not hold the mutex meanwhile,
  // so that abort() does not block.
  std::shared_ptr<Backend> all() {
    if (!all_) {
      auto connected = groups_.connect_all();
      connected->announce(identity_);
      const std::lock_guard lock(mutex_);
      all_ = std::move(connected);
    }
    return all_;
  }

  static ReduceOp without_average(ReduceOp op) {
    return op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  }
  static int64_t begin_of(const Counts& counts, int64_t index) {
    return std::accumulate(counts.begin(), counts.begin() + index, int64_t{0});
  }
  void divide(const at::Tensor& sum) const {
    sum.div_(static_cast<int64_t>(order_.size()));
  }
  void reduce_inside(const at::Tensor& tensor, ReduceOp op) {
    if (groups_.inside) {
      finish(groups_.inside->all_reduce(tensor, without_average(op)));
    }
  }
  // Broadcasts the leader's tensor within this host.
  void spread(const at::Tensor& tensor) {
    if (groups_.inside && tensor.numel() > 0) {
      finish(groups_.inside->broadcast(tensor, 0));
    }
  }

  bool is_in_order() const { return std::ranges::is_sorted(order_); }
  Counts counts_of_hosts(const Counts& counts) const {
    Counts result;
    for (const auto& host : layout_.hosts) {
      int64_t sum = 0;
      for (const int64_t rank : host) {
        sum += counts[rank];
      }
      result.push_back(sum);
    }
    return result;
  }
  Counts own_counts(const Counts& counts) const {
    Counts result;
    for (const int64_t rank : layout_.hosts[layout_.own_host]) {
      result.push_back(counts[rank]);
    }
    return result;
  }
  at::Tensor in_host_order(const at::Tensor& input, const Counts& counts)
      const {
    if (is_in_order()) {
      return input;
    }
    const auto parts = input.split_with_sizes(counts);
    std::vector<at::Tensor> ordered;
    for (const int64_t rank : order_) {
      ordered.push_back(parts[rank]);
    }
    return at::cat(ordered);
  }
  void from_host_order(
      const at::Tensor& output,
      const at::Tensor& ordered,
      const Counts& counts) const {
    const auto parts = output.split_with_sizes(counts);
    int64_t begin = 0;
    for (const int64_t rank : order_) {
      parts[rank].copy_(ordered.narrow(0, begin, counts[rank]));
      begin += counts[rank];
    }
  }

  HostLayout layout_;
  HostGroups groups_;
  /// Guards `all_`, which abort() reads on other threads.
  std::mutex mutex_;
  std::shared_ptr<Backend> all_;
  /// The identity of the running call.
  uint64_t identity_ = 0;
  /// The group ranks, ordered by host.
  std::vector<int64_t> order_;
};

class HierarchicalBackend final : public Backend {
 public:
  HierarchicalBackend(
      GroupMembers members,
      HostLayout layout,
      HostGroups groups)
      : Backend(std::move(members)),
        stages_(std::make_shared<Stages>(std::move(layout), std::move(groups))),
        worker_(std::make_shared<Worker>()) {}

  std::string_view kind() const override { return "shm+gloo"; }
  bool supports(c10::DeviceType device) const override {
    return device == c10::DeviceType::CPU;
  }

  std::unique_ptr<BackendWork> all_reduce(const at::Tensor& tensor, ReduceOp op)
      override {
    return start([=](Stages& stages) { stages.all_reduce(tensor, op); });
  }
  std::unique_ptr<BackendWork> all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) override {
    return start(
        [=](Stages& stages) { stages.all_gather(output, input, counts); });
  }
  std::unique_ptr<BackendWork> reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts,
      ReduceOp op) override {
    return start([=](Stages& stages) {
      stages.reduce_scatter(output, input, counts, op);
    });
  }
  std::unique_ptr<BackendWork> all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& output_counts,
      const Counts& input_counts) override {
    return start([=](Stages& stages) {
      stages.all_to_all(output, input, output_counts, input_counts);
    });
  }
  std::unique_ptr<BackendWork> broadcast(const at::Tensor& tensor, int64_t root)
      override {
    return start([=](Stages& stages) { stages.broadcast(tensor, root); });
  }
  std::unique_ptr<BackendWork> barrier() override {
    return start([](Stages& stages) { stages.barrier(); });
  }
  void abort() noexcept override { stages_->abort(); }

 private:
  std::unique_ptr<BackendWork> start(std::function<void(Stages&)> run) {
    return std::make_unique<WorkerThreadWork>(
        worker_,
        worker_->start(
            [stages = stages_, called = identity(), run = std::move(run)] {
              stages->announce(called);
              run(*stages);
            }));
  }

  std::shared_ptr<Stages> stages_;
  std::shared_ptr<Worker> worker_;
};

} // namespace

HostLayout HostLayout::of(
    const std::vector<std::string>& domains,
    int64_t rank) {
  HostLayout layout;
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < domains.size(); ++i) {
    const auto [at, is_new] = index.emplace(domains[i], layout.hosts.size());
    if (is_new) {
      layout.hosts.emplace_back();
    }
    auto& host = layout.hosts[at->second];
    if (static_cast<int64_t>(i) == rank) {
      layout.own_host = static_cast<int64_t>(at->second);
      layout.own_position = static_cast<int64_t>(host.size());
    }
    host.push_back(static_cast<int64_t>(i));
  }
  return layout;
}

std::shared_ptr<Backend> make_hierarchical_backend(
    GroupMembers members,
    HostLayout layout,
    HostGroups groups) {
  return std::make_shared<HierarchicalBackend>(
      std::move(members), std::move(layout), std::move(groups));
}

} // namespace weft::mesh
