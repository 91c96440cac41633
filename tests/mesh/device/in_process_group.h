#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "mesh/device/device_plugin.h"

namespace weft::test {

/// What one rank gives a collective.
struct Post {
  std::string op;
  std::vector<at::Tensor> inputs = {};
  std::vector<at::Tensor> outputs = {};
  c10d::ReduceOp reduce_op = c10d::ReduceOp::SUM;
  int64_t root = 0;
};

/// The meeting point of the ranks of one group, which are threads of one
/// process. The last rank to arrive runs a collective by copies and sums.
class Board {
 public:
  explicit Board(int64_t size) : size_(size) {}

  /// `done` is called, on the last rank's thread, once it is.
  void post(
      int64_t sequence,
      int64_t rank,
      Post post,
      std::function<void(std::exception_ptr)> done);

 private:
  struct Meeting {
    std::map<int64_t, Post> posts;
    std::vector<std::function<void(std::exception_ptr)>> done;
  };

  int64_t size_;
  std::mutex mutex_;
  std::map<int64_t, Meeting> meetings_;
};

/// c10d::ProcessGroupNCCL in memory: the same methods, with the same
/// restrictions on dtypes, sizes and contiguity, on tensors of the CPU.
/// Operations end when the last rank has come, long after they were started.
class MemoryGroup final : public c10d::Backend {
 public:
  MemoryGroup(
      std::shared_ptr<Board> status_exchange,
      int64_t rank,
      int64_t size)
      : Backend(static_cast<int>(rank), static_cast<int>(size)),
        board_(std::move(status_exchange)) {}

  const std::string getBackendName() const override { return "memory"; }

  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options)
      override;
  Work _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override;
  Work alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_counts,
      std::vector<int64_t>& input_counts,
      const c10d::AllToAllOptions& options) override;
  Work alltoall(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::AllToAllOptions& options) override;
  Work barrier(const c10d::BarrierOptions& options) override;
  void abort() override { ++aborts; }
  void shutdown() override { ++shutdowns; }
  c10d::ErrorType getError() override { return error; }

  /// The state that the watchdog would record.
  c10d::ErrorType error = c10d::ErrorType::SUCCESS;
  int aborts = 0;
  int shutdowns = 0;
  /// Names of the operations that were started.
  std::vector<std::string> started;

 private:
  Work start(Post post);

  std::shared_ptr<Board> board_;
  int64_t next_ = 0;
};

/// The functions that a backend over a MemoryGroup asks of its library.
const mesh::DevicePlugin& memory_plugin();

} // namespace weft::test
