#include "tests/ddp/join/join_training.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "data_parallel/comm_hooks/default_hooks.h"
#include "ddp/distributed_data_parallel.h"
#include "dtensor/nn/clip_grad.h"

namespace weft::test {
namespace {

/// Calls the test before each reduction.
class WatchedHook : public data_parallel::CommHook {
 public:
  WatchedHook(
      std::shared_ptr<data_parallel::CommHook> inner,
      std::function<void()> before)
      : inner_(std::move(inner)), before_(std::move(before)) {}

  std::string name() const override { return inner_->name(); }
  bool divides() const override { return inner_->divides(); }
  bool can_be_tried() const override { return false; }
  void on_rebuilt_buckets() override { inner_->on_rebuilt_buckets(); }
  data_parallel::BucketFuture run(
      const data_parallel::GradBucket& bucket) override {
    before_();
    return inner_->run(bucket);
  }

 private:
  std::shared_ptr<data_parallel::CommHook> inner_;
  std::function<void()> before_;
};

/// One replica's loop over its inputs.
class JoinLoop {
 public:
  JoinLoop(
      const JoinRun& run,
      const mesh::DeviceMesh& mesh,
      const JoinTraining& training)
      : run_(run),
        setup_(run.setup()),
        mesh_(mesh),
        training_(training),
        replica_(mesh.coordinate("dp")),
        model_(make_replica(setup_, mesh)),
        parameters_(data_parallel::tensors_of(unique_parameters(*model_))),
        optimizer_(parameters_, option_sgd()) {
    if (setup_.has_experts) {
      setup_.options.parameter_groups = {
          {.parameters = {setup_.experts() + "*"},
           .mesh = training.experts.value()}};
    }
    if (setup_.optimizer == OptionSetup::Optimizer::kInBackward) {
      in_backward_ = ddp::apply_optimizer_in_backward(make_sgd, parameters_);
    }
    ddp_ = std::make_unique<ddp::DistributedDataParallel<OptionModel>>(
        model_, mesh["dp"], setup_.options);
    if (in_backward_) {
      ddp_->register_fused_optim(in_backward_);
    } else if (setup_.optimizer == OptionSetup::Optimizer::kFused) {
      ddp_->register_fused_optim(make_sgd);
    }
    register_hook();
    ddp_->require_manual_backward_finalization(setup_.finalizes_manually);
  }

  OptionTrace train() {
    std::vector<data_parallel::Joinable*> joinables = {ddp_.get()};
    for (auto* each : training_.joinables) {
      joinables.push_back(each);
    }
    data_parallel::Join join(
        joinables, training_.options, join_kwargs(run_.division));
    join.run([this] {
      for (int64_t i = 0; i < run_.counts.at(replica_); ++i) {
        run_batch(i);
      }
    });
    // Of ranks that ran out of inputs earlier they are others.
    optimizer_.zero_grad(/*set_to_none=*/true);
    auto trace = trace_of(*model_, {});
    trace.gradients.clear();
    return trace;
  }

 private:
  static std::unique_ptr<torch::optim::Optimizer> make_sgd(
      std::vector<at::Tensor> some) {
    return std::make_unique<torch::optim::SGD>(std::move(some), option_sgd());
  }

  void tell(const std::string& place, int64_t batch) const {
    if (training_.at) {
      training_.at(place, batch);
    }
  }

  void register_hook() {
    auto hook = setup_.hook ? setup_.hook() : nullptr;
    if (hook && training_.at) {
      hook = std::make_shared<WatchedHook>(
          std::move(hook), [this] { tell("hook", -1); });
    }
    if (hook) {
      ddp_->register_comm_hook(std::move(hook));
    }
  }

  at::Tensor loss_of(int64_t batch) {
    tell("forward", batch);
    auto x = join_inputs(setup_, replica_, batch);
    model_->kind = setup_.kind(replica_, batch);
    if (mesh_.size("tp") > 1) {
      x = place_option_inputs(setup_.model, x, mesh_["tp"]);
    }
    auto scale = 1.0 / static_cast<double>(setup_.micro);
    if (setup_.options.reduce_op == mesh::ReduceOp::kSum) {
      scale /= static_cast<double>(run_.dp());
    }
    return option_loss((*ddp_)(x)) * scale;
  }

  void add_gradients(int64_t batch) {
    auto loss = loss_of(batch);
    tell("loss", batch);
    if (!setup_.joint) {
      loss.backward();
      return;
    }
    joint_ = joint_.defined() ? joint_ + loss : loss;
    if (ends_step(batch)) {
      std::exchange(joint_, at::Tensor()).backward();
    }
  }

  bool ends_step(int64_t batch) const {
    return batch % setup_.micro == setup_.micro - 1;
  }

  void run_batch(int64_t batch) {
    if (!ends_step(batch) && !setup_.joint) {
      const auto guard = ddp_->no_sync();
      add_gradients(batch);
      return;
    }
    add_gradients(batch);
    if (!ends_step(batch)) {
      return;
    }
    if (setup_.finalizes_manually) {
      ddp_->finalize_backward();
    }
    tell("step", batch);
    if (setup_.max_norm) {
      dtensor::clip_grad_norm_(parameters_, *setup_.max_norm);
    }
    optimizer_.step();
    optimizer_.zero_grad(/*set_to_none=*/!setup_.zero);
    tell("reduced", batch);
  }

  const JoinRun& run_;
  JoinSetup setup_;
  const mesh::DeviceMesh& mesh_;
  const JoinTraining& training_;
  int64_t replica_;
  std::shared_ptr<OptionModel> model_;
  std::vector<at::Tensor> parameters_;
  torch::optim::SGD optimizer_;
  std::shared_ptr<ddp::OptimizerInBackward> in_backward_;
  std::unique_ptr<ddp::DistributedDataParallel<OptionModel>> ddp_;
  at::Tensor joint_;
};

} // namespace

OptionTrace train_under_join(
    const JoinRun& run,
    const mesh::DeviceMesh& mesh,
    const JoinTraining& training) {
  return JoinLoop(run, mesh, training).train();
}

std::vector<OptionTrace> train_ranks_under_join(
    SharedRanks& ranks,
    const JoinRun& run) {
  std::vector<OptionTrace> traces(run.dp() * run.tp);
  ranks.run(
      run.dp(), run.tp, [&](RankContext& self, const mesh::DeviceMesh& mesh) {
        JoinTraining training;
        if (run.setup().has_experts) {
          training.experts = join_pair_of(self);
        }
        traces.at(self.rank) = train_under_join(run, mesh, training);
      });
  return traces;
}

mesh::DeviceMesh join_pair_of(const RankContext& self) {
  const auto first = self.rank / 2 * 2;
  return mesh::DeviceMesh::from_group(
      self.world,
      self.world.make_group(
          "join pair" + std::to_string(first),
          {first, first + 1},
          std::to_string(self.world.next_id())));
}

data_parallel::JoinKwargs join_kwargs(Division division) {
  switch (division) {
    case Division::kInitial:
      return {};
    case Division::kEffective:
      return {{"divide_by_initial_world_size", false}};
    case Division::kSamples:
      return {{"weight_by_samples", true}};
  }
  return {};
}

at::Tensor join_inputs(const JoinSetup& setup, int64_t replica, int64_t batch) {
  const auto rows = option_inputs(
      setup.model, join_rows(replica, batch), 8 * batch + replica);
  return rows.is_floating_point() ? rows.to(setup.dtype) : rows;
}

} // namespace weft::test
