// Training through comm hooks: what they move, and what it costs in loss.
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "data_parallel/comm_hooks/default_hooks.h"
#include "data_parallel/comm_hooks/post_local_sgd_hook.h"
#include "data_parallel/comm_hooks/power_sgd_hook.h"
#include "data_parallel/comm_hooks/quantization_hooks.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/model_averaging/averagers.h"
#include "ddp/model_averaging/post_local_sgd_optimizer.h"
#include "tests/ddp/models.h"
#include "tests/ddp/oracle/oracle.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::chirp;
using test::entries_named;
using test::RankContext;
using test::run_ranks;

constexpr int64_t kTrainingRows = 64;

/// Three layers with values of their own.
struct Regression : torch::nn::Module {
  explicit Regression(double phase)
      : a(register_module("a", torch::nn::Linear(32, 64))),
        b(register_module("b", torch::nn::Linear(64, 64))),
        c(register_module("c", torch::nn::Linear(64, 8))) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      const auto scale = parameter.dim() == 2
                             ? 1.5 / std::sqrt(double(parameter.size(1)))
                             : 0.1;
      parameter.copy_(chirp(parameter.sizes(), phase, at::kFloat) * scale);
      phase += 1.0;
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return c(at::tanh(b(at::tanh(a(x)))));
  }
  torch::nn::Linear a, b, c;
};

/// Distance of a model from a teacher on this rank's part of the data.
struct Task {
  explicit Task(const RankContext& self) {
    const at::NoGradGuard no_grad;
    const auto all =
        chirp({kTrainingRows * self.world_size, 32}, 0.5, at::kFloat);
    x = all.narrow(0, self.rank * kTrainingRows, kTrainingRows);
    y = Regression(40.0).forward(x);
  }
  template <class Model>
  at::Tensor loss(Model& model) const {
    return (model.forward(x) - y).pow(2).mean();
  }
  at::Tensor x, y;
};

double mean_over(const mesh::DeviceMesh& mesh, const at::Tensor& loss) {
  const auto mean = loss.detach().to(at::kDouble).clone();
  mesh.group("dp").all_reduce(mean, mesh::ReduceOp::kAvg).wait();
  return mean.item<double>();
}

struct Outcome {
  double first_loss = 0;
  double loss = 0;
  int64_t bytes = 0;
};

using MakeHook = std::function<std::shared_ptr<data_parallel::CommHook>()>;

/// 200 steps on two replicas.
Outcome train(const MakeHook& make_hook) {
  Outcome outcome;
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    const auto model = std::make_shared<Regression>(0.3);
    DistributedDataParallel ddp(model, mesh);
    if (const auto hook = make_hook()) {
      ddp.register_comm_hook(hook);
    }
    torch::optim::SGD optimizer(
        model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    const Task task(self);
    const auto first_loss = mean_over(mesh, task.loss(*model));
    mesh.group("dp").flight_recorder().reset();
    for (int step = 0; step < 200; ++step) {
      optimizer.zero_grad();
      task.loss(ddp).backward();
      optimizer.step();
    }
    int64_t bytes = 0;
    for (const auto& entry : entries_named(mesh.group("dp"), "ddp bucket")) {
      bytes += entry.bytes;
    }
    ddp.check_replicas();
    const auto loss = mean_over(mesh, task.loss(*model));
    if (self.rank == 0) {
      outcome = {first_loss, loss, bytes};
    }
  });
  return outcome;
}

data_parallel::PowerSGDOptions power_sgd(int64_t rank) {
  return {.matrix_approximation_rank = rank, .start_powerSGD_iter = 10};
}

TEST(CommHooksInTraining, MoveFewerBytesAtLittleLoss) {
  const std::map<std::string, MakeHook> hooks{
      {"none", [] { return nullptr; }},
      {"allreduce_hook", data_parallel::allreduce_hook},
      {"fp16_compress_hook", data_parallel::fp16_compress_hook},
      {"bf16_compress_hook", data_parallel::bf16_compress_hook},
      {"quantization_perchannel_hook",
       [] { return data_parallel::quantization_perchannel_hook(); }},
      {"powerSGD_hook_rank_1",
       [] {
         return std::make_shared<data_parallel::PowerSGDHook>(power_sgd(1));
       }},
      {"powerSGD_hook_rank_4",
       [] {
         return std::make_shared<data_parallel::PowerSGDHook>(power_sgd(4));
       }},
      {"batched_powerSGD_hook_rank_1",
       [] {
         return std::make_shared<data_parallel::BatchedPowerSGDHook>(
             power_sgd(1));
       }},
      {"bf16_powerSGD_hook_rank_4", [] {
         return data_parallel::bf16_compress_wrapper(
             std::make_shared<data_parallel::PowerSGDHook>(power_sgd(4)));
       }}};
  std::map<std::string, Outcome> outcomes;
  for (const auto& [name, make_hook] : hooks) {
    outcomes[name] = train(make_hook);
    RecordProperty(name + "_bytes", std::to_string(outcomes[name].bytes));
    RecordProperty(name + "_loss", std::to_string(outcomes[name].loss));
  }
  const auto plain = outcomes["none"];
  RecordProperty("first_loss", std::to_string(plain.first_loss));
  EXPECT_LE(plain.loss, plain.first_loss / 10);
  for (const auto& [name, outcome] : outcomes) {
    EXPECT_EQ(outcome.first_loss, plain.first_loss);
    const bool is_low_rank = name.find("powerSGD") != std::string::npos;
    const bool is_batched = name.starts_with("batched");
    const double factor = is_batched ? 4 : is_low_rank ? 1.1 : 1.01;
    EXPECT_LE(outcome.loss, plain.loss * factor) << name;
  }
  // Without a hook, the bucket has a flag of 4 bytes behind the gradients.
  const int64_t of_gradients = plain.bytes - 200 * 4;
  EXPECT_EQ(outcomes["allreduce_hook"].loss, plain.loss);
  EXPECT_EQ(outcomes["allreduce_hook"].bytes, of_gradients);
  EXPECT_EQ(outcomes["fp16_compress_hook"].bytes * 2, of_gradients);
  EXPECT_EQ(outcomes["bf16_compress_hook"].bytes * 2, of_gradients);
  EXPECT_LE(outcomes["powerSGD_hook_rank_1"].bytes * 7, plain.bytes);
  EXPECT_LE(outcomes["powerSGD_hook_rank_4"].bytes * 3, plain.bytes);
  EXPECT_LE(outcomes["batched_powerSGD_hook_rank_1"].bytes * 12, plain.bytes);
  EXPECT_EQ(
      outcomes["bf16_powerSGD_hook_rank_4"].bytes * 2,
      outcomes["powerSGD_hook_rank_4"].bytes);
}

TEST(CommHooksInTraining, ResumeToTheBitWithTheStateOfTheHook) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    const Task task(self);
    const auto options =
        data_parallel::PowerSGDOptions{.start_powerSGD_iter = 3};
    const auto steps = [&](Regression& model, auto& ddp, int count) {
      torch::optim::SGD optimizer(
          model.parameters(), torch::optim::SGDOptions(0.1));
      for (int step = 0; step < count; ++step) {
        optimizer.zero_grad();
        task.loss(ddp).backward();
        optimizer.step();
      }
    };
    const auto model = std::make_shared<Regression>(0.3);
    DistributedDataParallel ddp(model, mesh);
    ddp.register_comm_hook(
        std::make_shared<data_parallel::PowerSGDHook>(options));
    steps(*model, ddp, 6);

    const auto resumed = std::make_shared<Regression>(7.7);
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        resumed->parameters()[i].copy_(model->parameters()[i]);
      }
    }
    DistributedDataParallel again(resumed, mesh);
    again.set_bucket_layout(ddp.bucket_names());
    again.register_comm_hook(
        std::make_shared<data_parallel::PowerSGDHook>(options));
    again.load_comm_hook_state_dict(ddp.comm_hook_state_dict());
    steps(*model, ddp, 4);
    steps(*resumed, again, 4);
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(resumed->parameters()[i], model->parameters()[i]));
    }
  });
}

TEST(CommHooksInTraining, OfLocalSgdBringReplicasTogetherNowAndThen) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({4}, {"dp"});
    const Task task(self);
    const auto model = std::make_shared<Regression>(0.3);
    DistributedDataParallel ddp(model, mesh);
    ddp.register_comm_hook(data_parallel::post_localSGD_hook(
        {.subgroup = new_subgroups(mesh, 2), .start_localSGD_iter = 3}));
    PostLocalSGDOptimizer optimizer(
        std::make_shared<torch::optim::SGD>(
            model->parameters(), torch::optim::SGDOptions(0.1)),
        std::make_shared<PeriodicModelAverager>(4, 3, mesh));
    const auto first_loss = mean_over(mesh, task.loss(*model));
    for (int step = 0; step < 32; ++step) {
      optimizer.zero_grad();
      task.loss(ddp).backward();
      optimizer.step();
      // Alike while gradients are averaged over all, and after an average.
      const bool is_alike = step < 3 || (step - 3) % 4 == 0;
      const auto greatest = model->a->weight.detach().clone();
      mesh.group("dp").all_reduce(greatest, mesh::ReduceOp::kMax).wait();
      const auto least = model->a->weight.detach().clone();
      mesh.group("dp").all_reduce(least, mesh::ReduceOp::kMin).wait();
      EXPECT_EQ(at::equal(greatest, least), is_alike) << step;
    }
    EXPECT_LE(mean_over(mesh, task.loss(*model)), first_loss / 2);
  });
}

} // namespace
} // namespace weft::ddp
