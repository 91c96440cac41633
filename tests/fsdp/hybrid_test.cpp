// How a model with replicated shards sums its gradients over the replicas.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "data_parallel/comm_hooks/default_hooks.h"
#include "data_parallel/comm_hooks/power_sgd_hook.h"
#include "data_parallel/comm_hooks/quantization_hooks.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "fsdp/fully_sharded_data_parallel.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/fsdp/models.h"
#include "tests/support/run_ranks.h"

namespace weft::fsdp {
namespace {

using weft::test::RankContext;
using weft::test::run_ranks;

/// A Chain of five units on a mesh of replicas and shards.
struct Hybrid {
  explicit Hybrid(
      const mesh::DeviceMesh& mesh,
      const MixedPrecisionPolicy& policy = {},
      mesh::ReduceOp reduce_op = mesh::ReduceOp::kAvg)
      : module(model_cases().at(1).make_deferred()) {
    const FullyShardOptions options{
        .reduce_op = reduce_op, .mixed_precision = policy};
    for (auto* unit : module->units()) {
      fully_shard(*unit, mesh, options);
    }
    model = std::make_unique<FullyShardedDataParallel<TestModel>>(
        module, mesh, options);
    dtensor::materialize(*module, 1);
  }

  /// Runs a backward pass: "reduced", "no_all_reduce" or "no_sync".
  void backward(const std::string& kind, int64_t step, int64_t rank) const {
    const std::unique_ptr<NoSyncGuard> guard(
        kind == "no_sync"         ? new NoSyncGuard(model->no_sync())
        : kind == "no_all_reduce" ? new NoSyncGuard(model->no_all_reduce())
                                  : nullptr);
    (*model)(rows_of_numbers(step, rank)).pow(2).mean().backward();
  }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> result;
    for (const auto& parameter : module->parameters()) {
      result.push_back(dtensor::full_tensor(parameter.grad()).clone());
    }
    return result;
  }

  std::shared_ptr<TestModel> module;
  std::unique_ptr<FullyShardedDataParallel<TestModel>> model;
};

int count(const mesh::DeviceMesh& mesh, int64_t dim, const std::string& op) {
  int calls = 0;
  for (const auto& entry : mesh.group(dim).flight_recorder().entries()) {
    calls += entry.op == op ? 1 : 0;
  }
  return calls;
}

TEST(HybridAccumulation, ReducesOverTheReplicasOnlyOutsideTheGuard) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "dp_shard"});
    const Hybrid hybrid(mesh);
    hybrid.model->synchronize_parameters();
    const auto counts_of = [&](const std::string& kind, int64_t step) {
      mesh.group(int64_t{0}).flight_recorder().reset();
      mesh.group(int64_t{1}).flight_recorder().reset();
      hybrid.backward(kind, step, self.rank);
      return std::pair(
          count(mesh, 0, "all_reduce"), count(mesh, 1, "reduce_scatter"));
    };
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(counts_of("no_all_reduce", 0), std::pair(0, 5));
      for (const auto& parameter : hybrid.module->parameters()) {
        const auto& spec = dtensor::spec_of(parameter.grad());
        EXPECT_TRUE(spec.placement(0).is_partial()) << spec.to_string();
        EXPECT_TRUE(spec.placement(1).is_shard()) << spec.to_string();
      }
      EXPECT_EQ(counts_of("no_all_reduce", 1), std::pair(0, 5));
      EXPECT_EQ(counts_of("reduced", 2), std::pair(5, 5));
      for (const auto& parameter : hybrid.module->parameters()) {
        EXPECT_EQ(
            dtensor::spec_of(parameter.grad()), dtensor::spec_of(parameter));
      }
      hybrid.module->zero_grad();
    }
  });
}

// Of earlier passes some are summed over all ranks, some over the shards and
// some over none: each counts once.
TEST(HybridAccumulation, AnyOrderOfPassesGivesTheSameSum) {
  using Kinds = std::vector<std::string>;
  const std::string all = "reduced", part = "no_all_reduce", own = "no_sync";
  for (const auto& [replicas, shards] :
       {std::pair(2, 2), {3, 1}, {1, 2}, {2, 3}}) {
    run_ranks(replicas * shards, [&, r = replicas, s = shards](auto& self) {
      const auto mesh = self.mesh({r, s}, {"dp", "dp_shard"});
      const auto gradients_of = [&](const Kinds& kinds) {
        const Hybrid hybrid(mesh);
        for (size_t i = 0; i < kinds.size(); ++i) {
          hybrid.backward(kinds[i], static_cast<int64_t>(i), self.rank);
        }
        return hybrid.gradients();
      };
      const auto expected = gradients_of({all, all, all});
      for (const auto& kinds : std::vector<Kinds>{
               {part, part, all},
               {all, part, all},
               {all, own, all},
               {part, own, all},
               {own, part, all},
               {all, part, part},
               {own, part, part}}) {
        const auto found = gradients_of(kinds);
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-5, 1e-6))
              << r << "x" << s << ", " << c10::Join(" ", kinds)
              << ", parameter " << i;
        }
      }
    });
  }
}

TEST(HybridAccumulation, KeepsGradientsInFullPrecisionBetweenPasses) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "dp_shard"});
    const auto gradients_of = [&](const MixedPrecisionPolicy& policy) {
      const Hybrid hybrid(mesh, policy);
      hybrid.backward("no_all_reduce", 0, self.rank);
      for (const auto& parameter : hybrid.module->parameters()) {
        EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
      }
      hybrid.backward("reduced", 1, self.rank);
      return hybrid.gradients();
    };
    const auto expected = gradients_of({});
    const auto found = gradients_of({.param_dtype = at::kBFloat16});
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(at::allclose(found[i], expected[i], 0.05, 0.01)) << i;
    }
  });
}

TEST(HybridAccumulation, ZeroGradForgetsWhatWasNotReduced) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "dp_shard"});
    const Hybrid once(mesh);
    once.backward("reduced", 0, self.rank);
    const Hybrid hybrid(mesh);
    hybrid.backward("no_all_reduce", 7, self.rank);
    hybrid.module->zero_grad();
    hybrid.backward("reduced", 0, self.rank);
    const auto expected = once.gradients();
    const auto found = hybrid.gradients();
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
    }
  });
}

/// Gradients after two micro-batches and one reduced pass before them.
std::vector<at::Tensor> gradients_by(
    const mesh::DeviceMesh& mesh,
    mesh::ReduceOp reduce_op,
    std::shared_ptr<data_parallel::CommHook> hook,
    const MixedPrecisionPolicy& policy = {}) {
  const Hybrid hybrid(mesh, policy, reduce_op);
  if (hook) {
    hybrid.model->register_comm_hook(std::move(hook));
  }
  const int64_t rank = mesh.world().rank();
  hybrid.backward("reduced", 0, rank);
  hybrid.backward("no_all_reduce", 1, rank);
  hybrid.backward("reduced", 2, rank);
  return hybrid.gradients();
}

TEST(HybridCommHook, ExactHooksGiveTheBitsOfNoHook) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "dp_shard"});
    for (const auto reduce_op : {mesh::ReduceOp::kAvg, mesh::ReduceOp::kSum}) {
      const auto expected = gradients_by(mesh, reduce_op, nullptr);
      for (const auto& hook :
           {data_parallel::allreduce_hook(),
            data_parallel::all_reduce_by_sum()}) {
        const auto found = gradients_by(mesh, reduce_op, hook);
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(at::equal(found[i], expected[i]))
              << hook->name() << ", parameter " << i;
        }
      }
    }
  });
}

TEST(HybridCommHook, CompressingHooksRoundTheSameSums) {
  run_ranks(6, [](RankContext& self) {
    const auto mesh = self.mesh({3, 2}, {"dp", "dp_shard"});
    for (const auto reduce_op : {mesh::ReduceOp::kAvg, mesh::ReduceOp::kSum}) {
      const auto expected = gradients_by(mesh, reduce_op, nullptr);
      for (const auto& [hook, tolerance] :
           {std::pair(data_parallel::bf16_compress_hook(), 0.02),
            {data_parallel::fp16_compress_hook(), 0.005},
            {data_parallel::quantization_pertensor_hook(), 0.05}}) {
        const auto found = gradients_by(mesh, reduce_op, hook);
        bool is_rounded = false;
        for (size_t i = 0; i < found.size(); ++i) {
          const auto most = expected[i].abs().max().item<double>();
          EXPECT_LE(
              (found[i] - expected[i]).abs().max().item<double>(),
              tolerance * most)
              << hook->name() << ", parameter " << i;
          is_rounded |= !at::equal(found[i], expected[i]);
        }
        EXPECT_TRUE(is_rounded) << hook->name();
      }
    }
  });
}

TEST(HybridCommHook, SumsGradientsOfMixedPrecision) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "dp_shard"});
    const MixedPrecisionPolicy policy{
        .param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    const auto expected =
        gradients_by(mesh, mesh::ReduceOp::kAvg, nullptr, policy);
    const auto found = gradients_by(
        mesh,
        mesh::ReduceOp::kAvg,
        data_parallel::bf16_compress_hook(),
        policy);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].scalar_type(), at::kFloat);
      EXPECT_TRUE(at::allclose(found[i], expected[i], 0.05, 0.01)) << i;
    }
  });
}

// A bucket lists its parameters; what no rank used has no gradient afterwards.
TEST(HybridCommHook, SeesEachUnitAndKeepsUnusedParametersWithoutGradient) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "dp_shard"});
    const Hybrid hybrid(mesh);
    std::set<std::string> names;
    hybrid.model->register_comm_hook(data_parallel::make_comm_hook(
        "listing", false, [&](const data_parallel::GradBucket& bucket) {
          names.insert(bucket.names.begin(), bucket.names.end());
          EXPECT_EQ(bucket.gradients.size(), bucket.parameters.size());
          for (size_t i = 0; i < bucket.gradients.size(); ++i) {
            EXPECT_EQ(
                bucket.gradients[i].sizes(), bucket.parameters[i].sizes());
          }
          auto group = bucket.group;
          return data_parallel::BucketFuture(
                     group.all_reduce(
                         bucket.buffer, mesh::ReduceOp::kSum, "listing"),
                     bucket.buffer)
              .then([](const at::Tensor& sum) { return sum.clone(); });
        }));
    names.clear();
    {
      const ForwardScope scope(*hybrid.model);
      const auto& chain = dynamic_cast<const Chain&>(*hybrid.module);
      const auto output =
          dtensor::call(chain.linears_.front(), rows_of_numbers(0, self.rank));
      output.sum().backward();
    }
    EXPECT_TRUE(hybrid.module->parameters().front().grad().defined());
    EXPECT_FALSE(hybrid.module->parameters().back().grad().defined());
    hybrid.backward("reduced", 1, self.rank);
    EXPECT_EQ(names.size(), hybrid.module->parameters().size());
  });
}

TEST(HybridCommHook, RefusesHooksThatItCannotUse) {
  using testing::HasSubstr;
  using testing::Throws;
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "dp_shard"});
    const auto refuses = [](auto& model, auto hook, const char* text) {
      try {
        model.register_comm_hook(std::move(hook));
        ADD_FAILURE() << "accepted: " << text;
      } catch (const c10::ValueError& error) {
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
    };
    const Hybrid hybrid(mesh);
    refuses(
        *hybrid.model, std::shared_ptr<data_parallel::CommHook>(), "is null");
    refuses(
        *hybrid.model,
        std::make_shared<data_parallel::PowerSGDHook>(
            data_parallel::PowerSGDOptions{}),
        "powerSGD_hook keeps state");
    refuses(
        *hybrid.model,
        data_parallel::make_comm_hook(
            "wrong",
            true,
            [](const auto& bucket) {
              return data_parallel::all_reduce_by_sum()->run(bucket);
            }),
        "declares that it divides");
    hybrid.model->register_comm_hook(data_parallel::bf16_compress_hook());
    refuses(
        *hybrid.model,
        data_parallel::bf16_compress_hook(),
        "hook is already registered");
    const Hybrid sharded(mesh["dp_shard"]);
    refuses(*sharded.model, data_parallel::bf16_compress_hook(), "only shards");
  });
}

} // namespace
} // namespace weft::fsdp
