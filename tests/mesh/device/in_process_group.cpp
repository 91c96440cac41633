#include "tests/mesh/device/in_process_group.h"

#include <numeric>
#include <utility>

#include <torch/torch.h>

namespace weft::test {
namespace {

class MemoryWork final : public c10d::Work {
 public:
  bool isCompleted() override {
    const std::lock_guard lock(lock_);
    return is_done_;
  }
  bool wait(std::chrono::milliseconds) override {
    std::unique_lock lock(lock_);
    done_.wait(lock, [&] { return is_done_; });
    if (error_) {
      std::rethrow_exception(error_);
    }
    return true;
  }
  void end(std::exception_ptr error) {
    std::vector<std::function<void()>> callbacks;
    {
      const std::lock_guard lock(lock_);
      is_done_ = true;
      error_ = std::move(error);
      callbacks.swap(callbacks_);
      done_.notify_all();
    }
    for (const auto& callback : callbacks) {
      callback();
    }
  }
  void then(std::function<void()> callback) {
    {
      const std::lock_guard lock(lock_);
      if (!is_done_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback();
  }

 private:
  std::mutex lock_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::exception_ptr error_;
  std::vector<std::function<void()>> callbacks_;
};

// As ProcessGroupNCCL checks a tensor.
void check(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "Tensors must be contiguous");
  switch (tensor.scalar_type()) {
    case at::kChar:
    case at::kByte:
    case at::kBool:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return;
    default:
      TORCH_CHECK(false, "Unsupported dtype ", tensor.scalar_type());
  }
}

at::Tensor
combine(const at::Tensor& a, const at::Tensor& b, const c10d::ReduceOp& op) {
  switch (op) {
    case c10d::ReduceOp::MIN:
      return at::minimum(a, b);
    case c10d::ReduceOp::MAX:
      return at::maximum(a, b);
    case c10d::ReduceOp::PRODUCT:
      return a * b;
    default:
      return a + b;
  }
}

using Posts = std::map<int64_t, Post>;

void all_reduce(Posts& posts) {
  const auto op = posts.at(0).reduce_op;
  at::Tensor total = posts.at(0).inputs[0].clone();
  for (size_t r = 1; r < posts.size(); ++r) {
    total = combine(total, posts.at(static_cast<int64_t>(r)).inputs[0], op);
  }
  if (op == c10d::ReduceOp::AVG) {
    total.div_(static_cast<int64_t>(posts.size()));
  }
  for (auto& [rank, post] : posts) {
    post.inputs[0].copy_(total);
  }
}

// Rank r's outputs[s] gets rank s's inputs[r].
void exchange(Posts& posts) {
  for (auto& [to, receiver] : posts) {
    for (auto& [from, sender] : posts) {
      const auto& input = sender.inputs.at(static_cast<size_t>(to));
      auto& output = receiver.outputs.at(static_cast<size_t>(from));
      TORCH_CHECK(
          input.numel() == output.numel(),
          "rank ",
          from,
          " sends ",
          input.numel(),
          " elements, rank ",
          to,
          " expects ",
          output.numel());
      output.copy_(input);
    }
  }
}

void run(Posts& posts) {
  const auto& first = posts.at(0);
  for (const auto& [rank, post] : posts) {
    TORCH_CHECK(post.op == first.op, post.op, " meets ", first.op);
  }
  if (first.op == "all_reduce") {
    all_reduce(posts);
  } else if (first.op == "broadcast") {
    const auto value = posts.at(first.root).inputs[0].clone();
    for (auto& [rank, post] : posts) {
      post.inputs[0].copy_(value);
    }
  } else if (first.op != "barrier") {
    exchange(posts);
  }
}

std::vector<at::Tensor> cut(
    const at::Tensor& tensor,
    const std::vector<int64_t>& counts) {
  TORCH_CHECK(
      std::accumulate(counts.begin(), counts.end(), int64_t{0}) ==
          tensor.size(0),
      "Split sizes do not add up to the tensor's");
  return tensor.split_with_sizes(counts);
}

} // namespace

void Board::post(
    int64_t sequence,
    int64_t rank,
    Post post,
    std::function<void(std::exception_ptr)> done) {
  Meeting meeting;
  {
    const std::lock_guard lock(mutex_);
    auto& found = meetings_[sequence];
    found.posts.emplace(rank, std::move(post));
    found.done.push_back(std::move(done));
    if (static_cast<int64_t>(found.posts.size()) < size_) {
      return;
    }
    meeting = std::move(found);
    meetings_.erase(sequence);
  }
  std::exception_ptr error;
  try {
    run(meeting.posts);
  } catch (...) {
    error = std::current_exception();
  }
  for (const auto& end : meeting.done) {
    end(error);
  }
}

MemoryGroup::Work MemoryGroup::start(Post post) {
  for (const auto& tensor : post.inputs) {
    check(tensor);
  }
  for (const auto& tensor : post.outputs) {
    check(tensor);
  }
  started.push_back(post.op);
  auto work = c10::make_intrusive<MemoryWork>();
  board_->post(next_++, getRank(), std::move(post), [work](auto error) {
    work->end(std::move(error));
  });
  return work;
}

MemoryGroup::Work MemoryGroup::allreduce(
    Tensors& tensors,
    const c10d::AllreduceOptions& options) {
  Post post{.op = "all_reduce", .inputs = tensors};
  post.reduce_op = options.reduceOp;
  return start(std::move(post));
}

MemoryGroup::Work MemoryGroup::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& options) {
  Post post{.op = "broadcast", .inputs = tensors};
  post.root = options.rootRank;
  return start(std::move(post));
}

MemoryGroup::Work MemoryGroup::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions&) {
  TORCH_CHECK(
      output.numel() == getSize() * input.numel() &&
          output.scalar_type() == input.scalar_type(),
      "The output holds one input a rank, of one dtype");
  return start(
      {.op = "all_gather",
       .inputs = Tensors(getSize(), input),
       .outputs = cut(output, std::vector<int64_t>(getSize(), input.numel()))});
}

MemoryGroup::Work MemoryGroup::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_counts,
    std::vector<int64_t>& input_counts,
    const c10d::AllToAllOptions&) {
  return start(
      {.op = "all_to_all",
       .inputs = cut(input, input_counts),
       .outputs = cut(output, output_counts)});
}

MemoryGroup::Work MemoryGroup::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions&) {
  return start({.op = "sends", .inputs = inputs, .outputs = outputs});
}

MemoryGroup::Work MemoryGroup::barrier(const c10d::BarrierOptions&) {
  return start({.op = "barrier"});
}

namespace {

std::shared_ptr<void> no_stream(int64_t) {
  return nullptr;
}

void call_after(
    c10d::Work& work,
    const std::shared_ptr<void>&,
    std::function<void()> callback) {
  dynamic_cast<MemoryWork&>(work).then(std::move(callback));
}

bool no_kernel(const at::Tensor&, const at::Tensor&, mesh::ReduceOp) {
  return false;
}

} // namespace

const mesh::DevicePlugin& memory_plugin() {
  static const mesh::DevicePlugin plugin = [] {
    mesh::DevicePlugin result;
    result.make_side_stream = no_stream;
    result.call_after = call_after;
    result.reduce_rows = no_kernel;
    return result;
  }();
  return plugin;
}

} // namespace weft::test
