// Saved activations cut between the ranks.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/support/run_ranks.h"
#include "tests/tp/models.h"
#include "tp/input_reshard.h"

namespace weft::tp {
namespace {

using test::RankContext;
using test::run_ranks;

using WeakMemory = c10::weak_intrusive_ptr<c10::StorageImpl>;

/// Its hidden state is replicated and saved by `up` and by tanh.
struct Wide : torch::nn::Module {
  Wide()
      : up(register_module("up", torch::nn::Linear(6, 8))),
        down(register_module("down", torch::nn::Linear(8, 6))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto hidden = at::tanh(x);
    if (dtensor::is_dtensor(hidden)) {
      memory.emplace_back(dtensor::dtensor_impl(hidden)
                              ->local()
                              .storage()
                              .getWeakStorageImpl());
    }
    return down(at::sigmoid(up(hidden)));
  }
  torch::nn::Linear up, down;
  std::vector<WeakMemory> memory;
};

struct WideOuter : torch::nn::Module {
  WideOuter() : wide(register_module("wide", std::make_shared<Wide>())) {}
  at::Tensor forward(const at::Tensor& x) { return dtensor::call(wide, x); }
  std::shared_ptr<Wide> wide;
};

class InputReshard : public ::testing::TestWithParam<int> {};

TEST_P(InputReshard, SameNumbersAndNothingWholeIsKept) {
  run_ranks(GetParam(), [&](RankContext& self) {
    const auto mesh = self.mesh({GetParam()}, {"tp"});
    for (const std::optional<int64_t> dim :
         {std::optional<int64_t>(),
          std::optional<int64_t>(0),
          std::optional<int64_t>(1),
          std::optional<int64_t>(-1)}) {
      SCOPED_TRACE(dim.value_or(-9));
      const auto outer = make_parallel<WideOuter>(
          mesh,
          {{"wide", {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}}}});
      const auto alone = plain_copy(*outer);
      input_reshard(*outer->wide, mesh, dim);
      const auto x = dtensor::distribute_tensor(
                         wave({3, 5, 6}), mesh, {Replicate()}, std::nullopt)
                         .requires_grad_();
      const auto x_alone = wave({3, 5, 6}).requires_grad_();
      const auto loss = loss_of(outer->forward(x));
      const bool is_cut = dim && mesh.size() > 1;
      EXPECT_EQ(outer->wide->memory.at(0).expired(), is_cut);
      auto& flight_recorder = mesh.group(0).flight_recorder();
      flight_recorder.reset();
      loss.backward();
      int64_t gathers = 0;
      for (const auto& [op, count] : flight_recorder.counts()) {
        gathers += op.starts_with("all_gather") ? count : 0;
      }
      // What tanh saved, and what up saved.
      EXPECT_EQ(gathers, is_cut ? 2 : 0);
      loss_of(alone->forward(x_alone)).backward();
      expect_same_gradients(*outer, *alone);
      expect_close(x.grad(), x_alone.grad(), "input gradient");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    InputReshard,
    ::testing::Values(1, 2, 3),
    ::testing::PrintToStringParamName());

} // namespace
} // namespace weft::tp
