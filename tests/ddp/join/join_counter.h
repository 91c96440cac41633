#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <torch/torch.h>

#include "data_parallel/join/join.h"

namespace weft::test {

/// Counts, over all ranks and iterations, how many had inputs: a joinable of
/// one collective an iteration.
class JoinCounter : public data_parallel::Joinable {
 public:
  explicit JoinCounter(
      const mesh::Communicator& group,
      mesh::DeviceMesh row = {},
      c10::Device device = at::kCPU)
      : group_(group), row_(std::move(row)), device_(device) {}

  /// One iteration of a rank that has an input.
  void operator()() {
    data_parallel::Join::notify_join_context(*this);
    add(1);
  }

  std::shared_ptr<data_parallel::JoinHook> join_hook(
      const data_parallel::JoinKwargs& kwargs) override {
    last_kwargs = kwargs;
    ++hooks_made;
    return std::make_shared<Hook>(*this);
  }
  c10::Device join_device() const override { return device_; }
  mesh::Communicator join_process_group() const override { return group_; }
  mesh::DeviceMesh join_model_parallel_mesh() const override { return row_; }

  int64_t total = 0;
  int64_t shadowed = 0;
  /// Calls of post_hook(), and what the last one was told.
  int64_t ends = 0;
  bool was_last = false;
  int64_t hooks_made = 0;
  data_parallel::JoinKwargs last_kwargs;
  /// Without a collective of its own.
  bool is_silent = false;
  /// Called first in main_hook() and post_hook().
  std::function<void()> in_main_hook = [] {};
  std::function<void()> in_post_hook = [] {};

 private:
  class Hook : public data_parallel::JoinHook {
   public:
    explicit Hook(JoinCounter& counter) : counter_(counter) {}
    void main_hook() override {
      counter_.in_main_hook();
      ++counter_.shadowed;
      counter_.add(0);
    }
    void post_hook(bool is_last_joiner) override {
      counter_.in_post_hook();
      ++counter_.ends;
      counter_.was_last = is_last_joiner;
    }

   private:
    JoinCounter& counter_;
  };

  void add(int64_t one) {
    if (is_silent) {
      total += one;
      return;
    }
    const auto number = at::full({1}, one, at::kLong);
    group_.all_reduce(number, mesh::ReduceOp::kSum, "counter").wait();
    total += number.item<int64_t>();
  }

  mesh::Communicator group_;
  mesh::DeviceMesh row_;
  c10::Device device_;
};

} // namespace weft::test
