// A graph owns what its backward needs: the mesh, the model, the inputs and the
// gradients' owners may be dropped between forward and backward. Deleted
// objects are overwritten here (poisoned_heap.cpp).

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/batch_norm/sync_batch_norm.h"
#include "ddp/distributed_data_parallel.h"
#include "dtensor/fused/experts.h"
#include "dtensor/fused/fused_ops.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/kernels/async_tp.h"
#include "dtensor/kernels/cross_entropy.h"
#include "dtensor/nn/activation_checkpoint.h"
#include "dtensor/nn/local_map.h"
#include "dtensor/random/random_state.h"
#include "dtensor/scopes/autocast.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/redistribution.h"
#include "fsdp/fully_sharded_data_parallel.h"
#include "tests/support/run_ranks.h"
#include "tp/lora.h"
#include "tp/parallelize_module.h"

namespace weft {
namespace {

using dtensor::Partial;
using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;
using mesh::DeviceMesh;
using weft::test::run_ranks;
using Tensors = std::vector<at::Tensor>;

at::Tensor wave(at::IntArrayRef sizes, double phase) {
  return at::sin(
             at::arange(c10::multiply_integers(sizes), at::kDouble) * 1.7 +
             phase)
      .view(sizes);
}

at::Tensor whole(const at::Tensor& tensor) {
  return dtensor::is_dtensor(tensor) ? dtensor::full_tensor(tensor) : tensor;
}

at::Tensor loss_of(const at::Tensor& output) {
  const auto y = whole(output);
  return (y * y * wave(y.sizes(), 0.7).to(y.scalar_type())).sum();
}

/// What a forward made. `owner` keeps the model and its wrapper alive.
struct Recorded {
  at::Tensor loss;
  Tensors leaves;
  std::shared_ptr<void> owner;
};

struct DroppedCase {
  std::string name;
  std::function<Recorded(const DeviceMesh&)> record;
  std::vector<int64_t> shape = {1, 2};
};

void PrintTo(const DroppedCase& each, std::ostream* out) {
  *out << each.name;
}

/// A DTensor leaf with the same values on every mesh.
at::Tensor leaf(
    const DeviceMesh& mesh,
    at::IntArrayRef sizes,
    const Placements& placements,
    double phase = 0.1) {
  return dtensor::distribute_tensor(
             wave(sizes, phase), mesh, placements, std::nullopt)
      .detach()
      .requires_grad_();
}

/// A leaf that is on the mesh without dims, as parameters are that only FSDP
/// shards.
at::Tensor unplaced_leaf(at::IntArrayRef sizes, double phase) {
  return dtensor::make_dtensor(
             wave(sizes, phase),
             dtensor::DTensorSpec(),
             sizes,
             dtensor::row_major_strides(sizes))
      .requires_grad_();
}

using Function = std::function<at::Tensor(const Tensors&)>;

Recorded record(const Tensors& leaves, const Function& function) {
  return {loss_of(function(leaves)), leaves, nullptr};
}

/// `function` of leaves with `sizes`, all placed by their `placements` (dp,
/// tp).
DroppedCase of_leaves(
    std::string name,
    std::vector<std::vector<int64_t>> sizes,
    std::vector<Placements> placements,
    Function function) {
  return {std::move(name), [=](const DeviceMesh& mesh) {
            Tensors leaves;
            for (size_t i = 0; i < sizes.size(); ++i) {
              leaves.push_back(leaf(
                  mesh, sizes[i], placements[i], 0.1 + static_cast<double>(i)));
            }
            return record(leaves, function);
          }};
}

DroppedCase of_unplaced(
    std::string name,
    std::vector<std::vector<int64_t>> sizes,
    Function function) {
  return {std::move(name), [=](const DeviceMesh&) {
            Tensors leaves;
            for (size_t i = 0; i < sizes.size(); ++i) {
              leaves.push_back(
                  unplaced_leaf(sizes[i], 0.1 + static_cast<double>(i)));
            }
            return record(leaves, function);
          }};
}

const auto kR = Replicate();
const Placements kWhole{Replicate(), Replicate()};
const Placements kRows{Replicate(), Shard(0)};
const Placements kColumns{Replicate(), Shard(1)};

at::Tensor replicated(const at::Tensor& like, const at::Tensor& values) {
  return dtensor::distribute_tensor(
      values, dtensor::spec_of(like).mesh(), kWhole, std::nullopt);
}

std::vector<DroppedCase> kernel_cases() {
  const auto linear = [](const Tensors& in) {
    return at::linear(in[0], in[1], in.size() > 2 ? in[2] : at::Tensor())
        .tanh();
  };
  const auto class_indices = [](const at::Tensor& like) {
    return replicated(like, at::arange(4) * 2 % 7);
  };
  return {
      of_leaves(
          "LinearColwise",
          {{4, 6}, {5, 6}, {5}},
          {kWhole, kRows, kRows},
          linear),
      of_leaves(
          "LinearRowwise",
          {{4, 6}, {5, 6}, {5}},
          {kColumns, kColumns, kWhole},
          linear),
      of_leaves(
          "LinearReplicated", {{2, 3, 6}, {5, 6}}, {kWhole, kWhole}, linear),
      of_leaves(
          "LinearMoved", {{2, 3, 6}, {5, 6}}, {{kR, Shard(1)}, kRows}, linear),
      of_leaves(
          "LinearTransposed",
          {{4, 6}, {6, 5}},
          {kWhole, kColumns},
          [](const Tensors& in) {
            return at::linear(in[0], in[1].t()).tanh();
          }),
      of_leaves(
          "Matmul",
          {{3, 4, 6}, {6, 5}},
          {kWhole, kColumns},
          [](const Tensors& in) { return at::matmul(in[0], in[1]).tanh(); }),
      of_leaves(
          "Addmm",
          {{5}, {4, 6}, {6, 5}},
          {kWhole, kWhole, kColumns},
          [](const Tensors& in) {
            return at::addmm(in[0], in[1], in[2]).tanh();
          }),
      of_leaves(
          "Pointwise",
          {{4, 6}, {6}},
          {kRows, kWhole},
          [](const Tensors& in) {
            return at::gelu(in[0] * in[1]).exp() + in[0].max() - in[1].sum();
          }),
      of_leaves(
          "Redistribute",
          {{5, 6}},
          {kRows},
          [](const Tensors& in) {
            const auto y = dtensor::redistribute(in[0] * 2, kColumns);
            return dtensor::redistribute_async(y.exp(), kWhole).wait().sin();
          }),
      of_leaves(
          "RedistributeCoalesced",
          {{5, 6}, {7}},
          {kRows, kRows},
          [](const Tensors& in) {
            const auto moved = dtensor::redistribute_coalesced(
                {in[0].exp(), in[1].exp()}, {kWhole, kWhole});
            return moved[0].sin().sum() + moved[1].sin().sum();
          }),
      of_leaves(
          "RedistributeToAnotherMesh",
          {{5, 6}},
          {kRows},
          [](const Tensors& in) {
            const auto mesh = dtensor::spec_of(in[0]).mesh()["tp"];
            return dtensor::redistribute(in[0].exp(), mesh, {Replicate()})
                .sin();
          }),
      of_leaves(
          "ToLocalAndFromLocal",
          {{6, 4}},
          {kRows},
          [](const Tensors& in) {
            const auto local = dtensor::to_local(in[0].exp()).sin();
            return dtensor::from_local(
                       local, dtensor::spec_of(in[0]).mesh(), kRows)
                .cos();
          }),
      of_leaves(
          "LocalMap",
          {{6, 4}},
          {kRows},
          [](const Tensors& in) {
            const auto local_exp = dtensor::local_map(
                [](const at::Tensor& x) { return x.exp(); }, kRows);
            return local_exp(in[0].sin()).cos();
          }),
      of_leaves(
          "Embedding",
          {{7, 6}},
          {kRows},
          [=](const Tensors& in) {
            return at::embedding(in[0], class_indices(in[0])).exp();
          }),
      of_leaves(
          "EmbeddingBag",
          {{7, 6}},
          {kColumns},
          [=](const Tensors& in) {
            return std::get<0>(at::embedding_bag(
                                   in[0],
                                   class_indices(in[0]),
                                   at::tensor({0, 2}, at::kLong)))
                .exp();
          }),
      of_leaves(
          "Norms",
          {{4, 6, 6}, {6}, {6}},
          {{kR, Shard(1)}, kWhole, kWhole},
          [](const Tensors& in) {
            const auto y = at::layer_norm(in[0].exp(), {6}, in[1], in[2]);
            const auto z = at::rms_norm(y, {6}, in[1]);
            return at::group_norm(z, 3, in[1], in[2]).exp();
          }),
      of_leaves(
          "Attention",
          {{2, 4, 5, 6}, {2, 4, 5, 6}, {2, 4, 5, 6}},
          {kColumns, kColumns, kColumns},
          [](const Tensors& in) {
            return at::scaled_dot_product_attention(
                       in[0].exp(), in[1], in[2], {}, 0.0, true)
                .exp();
          }),
      of_leaves(
          "GroupedAttention",
          {{2, 4, 5, 6}, {2, 2, 5, 6}, {2, 2, 5, 6}},
          {kColumns, kColumns, kColumns},
          [](const Tensors& in) {
            return at::scaled_dot_product_attention(
                       in[0], in[1], in[2], {}, 0.0, true, {}, true)
                .exp();
          }),
      of_leaves(
          "CrossEntropy",
          {{4, 7}},
          {kColumns},
          [=](const Tensors& in) {
            return at::cross_entropy_loss(
                       in[0].exp(), class_indices(in[0]), {}, 1, -100, 0.1)
                .exp();
          }),
      of_leaves(
          "CrossEntropyOfProbabilities",
          {{4, 7}, {4, 7}},
          {kColumns, kColumns},
          [](const Tensors& in) {
            return at::cross_entropy_loss(in[0].exp(), in[1].sigmoid()).exp();
          }),
      of_leaves(
          "ElementwiseLosses",
          {{4, 7}, {4, 7}},
          {kRows, kRows},
          [](const Tensors& in) {
            return at::mse_loss(in[0].exp(), in[1]).exp() +
                   at::huber_loss(in[0].exp(), in[1], at::Reduction::Sum);
          }),
      of_leaves(
          "Swiglu",
          {{4, 6}, {4, 6}},
          {kColumns, kColumns},
          [](const Tensors& in) {
            return dtensor::swiglu(in[0].exp(), in[1].exp()).exp();
          }),
      of_leaves(
          "RotaryEmbedding",
          {{2, 4, 5, 6}},
          {kColumns},
          [](const Tensors& in) {
            const auto angles = wave({5, 6}, 0.3);
            return dtensor::rotary_embedding(
                       in[0].exp(),
                       replicated(in[0], angles.cos()),
                       replicated(in[0], angles.sin()))
                .sin();
          }),
      of_leaves(
          "Experts",
          {{6, 4}, {6, 2}, {4, 10, 4}, {4, 4, 5}},
          {kRows, kRows, kRows, kRows},
          [](const Tensors& in) {
            const auto index = dtensor::distribute_tensor(
                at::stack({at::arange(6) % 4, (at::arange(6) + 1) % 4}, 1),
                dtensor::spec_of(in[0]).mesh(),
                kRows,
                std::nullopt);
            return dtensor::experts(in[0].exp(), index, in[1], in[2], in[3])
                .sin();
          }),
      of_leaves(
          "MatrixExp",
          {{2, 3, 3}},
          {kRows},
          [](const Tensors& in) {
            return at::linalg_matrix_exp(in[0].sin()).sin();
          }),
      of_leaves(
          "DropoutAndNoise",
          {{6, 8}},
          {kRows},
          [](const Tensors& in) {
            dtensor::manual_seed(dtensor::spec_of(in[0]).mesh(), 3);
            const auto y = at::dropout(in[0].exp(), 0.4, true);
            return (y * at::rand_like(y)).sin();
          }),
      of_leaves(
          "Gru",
          {{2, 3, 4}, {15, 4}, {15, 5}, {15}, {15}},
          {kColumns, kRows, kRows, kRows, kRows},
          [](const Tensors& in) {
            const auto state = dtensor::distribute_tensor(
                at::zeros({1, 3, 5}, at::kDouble),
                dtensor::spec_of(in[0]).mesh(),
                kColumns,
                std::nullopt);
            return std::get<0>(at::gru(
                                   in[0].exp(),
                                   state,
                                   {in[1], in[2], in[3], in[4]},
                                   true,
                                   1,
                                   0.0,
                                   true,
                                   false,
                                   false))
                .exp();
          }),
      of_leaves(
          "WritesToCopiedViews",
          {{6, 4}},
          {kRows},
          [](const Tensors& in) {
            auto y = in[0].sin() * 2;
            y.view({3, 8})[1].mul_(2);
            y.narrow(0, 2, 3).add_(1);
            return y.cos();
          }),
      of_leaves(
          "ActivationCheckpoint",
          {{4, 6}, {5, 6}},
          {kWhole, kRows},
          [](const Tensors& in) {
            return dtensor::activation_checkpoint(
                       [](const Tensors& x) {
                         return Tensors{at::linear(x[0], x[1]).exp().sin()};
                       },
                       {in[0].exp(), in[1]})
                .front()
                .cos();
          }),
      {"Autocast",
       [](const DeviceMesh& mesh) {
         const auto x = leaf(mesh, {4, 6}, kWhole).to(at::kFloat).detach();
         const auto w = leaf(mesh, {5, 6}, kRows).to(at::kFloat).detach();
         x.requires_grad_();
         w.requires_grad_();
         const dtensor::Autocast bfloat16(at::kCPU, at::kBFloat16);
         return record({x, w}, [](const Tensors& in) {
           return at::linear(at::linear(in[0], in[1]).t(), in[0].t())
               .to(at::kFloat)
               .tanh();
         });
       }},
      of_unplaced(
          "UnplacedLinear",
          {{4, 6}, {5, 6}, {5}, {}},
          [](const Tensors& in) {
            return at::linear(in[0] * in[3], in[1], in[2]).tanh();
          }),
      of_unplaced(
          "UnplacedOps",
          {{4, 6}, {6}},
          [](const Tensors& in) {
            const auto y = at::layer_norm(in[0].exp(), {6}, in[1]);
            return dtensor::swiglu(y, at::softmax(y, 1)).matmul(in[1]).exp();
          }),
  };
}

/// A model with every kind of layer that the wrappers treat.
struct NetworkImpl : torch::nn::Module {
  NetworkImpl()
      : up(register_module("up", torch::nn::Linear(6, 9))),
        down(register_module("down", torch::nn::Linear(9, 6))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({9})))),
        scale(register_parameter("scale", torch::ones({}))) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto h = at::gelu(norm(dtensor::call(up, x * scale)));
    return dtensor::call(down, h) + x;
  }

  torch::nn::Linear up, down;
  torch::nn::LayerNorm norm;
  at::Tensor scale;
};

/// With batch normalization instead, for DDP.
struct NormalizedImpl : torch::nn::Module {
  NormalizedImpl()
      : body(register_module(
            "body",
            torch::nn::Sequential(
                torch::nn::Linear(6, 5),
                torch::nn::BatchNorm1d(5)))) {}

  at::Tensor forward(const at::Tensor& x) { return body->forward(x); }

  torch::nn::Sequential body;
};

/// Parameters that the module itself uses, without calls of other modules.
struct BareImpl : torch::nn::Module {
  BareImpl()
      : w(register_parameter("w", torch::randn({11, 6}))),
        scale(register_parameter("scale", torch::ones({}))) {}

  at::Tensor forward(const at::Tensor& x) {
    return at::linear(x * scale, w).tanh();
  }

  at::Tensor w, scale;
};

template <class Module>
std::shared_ptr<Module> deferred() {
  const dtensor::DeferredInit scope;
  return std::make_shared<Module>();
}

/// The rows of this replica; a DTensor on the mesh dim "tp" if that has ranks.
at::Tensor input_of(const DeviceMesh& mesh) {
  const auto rows =
      wave({4, 6}, 0.4 + static_cast<double>(mesh.coordinate("dp")))
          .to(at::kFloat);
  return mesh.size("tp") > 1
             ? dtensor::distribute_tensor(
                   rows, mesh["tp"], {Replicate()}, std::nullopt)
             : rows;
}

/// The graph of `wrapper`'s forward, which owns a module with `parameters`.
template <class Wrapper>
Recorded record_wrapper(
    std::shared_ptr<Wrapper> wrapper,
    const Tensors& parameters,
    const at::Tensor& x) {
  auto y = (*wrapper)(x);
  return {loss_of(y), parameters, std::move(wrapper)};
}

const tp::ParallelizePlan& plan() {
  static const tp::ParallelizePlan plan{
      {"up", tp::ColwiseParallel()}, {"down", tp::RowwiseParallel()}};
  return plan;
}

Recorded tensor_parallel(const DeviceMesh& mesh, bool is_async) {
  const auto module = deferred<NetworkImpl>();
  const auto stream = is_async ? Shard(0) : Replicate();
  dtensor::set_async_tp(
      mesh, is_async ? dtensor::AsyncTp::kOn : dtensor::AsyncTp::kOff);
  tp::parallelize_module(
      *module,
      mesh["tp"],
      {{"up",
        tp::ColwiseParallel(
            {.input_layouts = stream, .output_layouts = Replicate()})},
       {"down",
        tp::RowwiseParallel(
            {.input_layouts = Replicate(), .output_layouts = stream})}});
  dtensor::materialize(*module, /*seed=*/5);
  auto x = dtensor::distribute_tensor(
      wave({4, 6}, 0.4).to(at::kFloat), mesh["tp"], {stream}, std::nullopt);
  auto y = module->forward(x);
  return {loss_of(y), module->parameters(), module};
}

std::vector<DroppedCase> wrapper_cases() {
  using ddp::DistributedDataParallel;
  return {
      {"TensorParallel",
       [](const DeviceMesh& mesh) { return tensor_parallel(mesh, false); }},
      {"AsyncTensorParallel",
       [](const DeviceMesh& mesh) { return tensor_parallel(mesh, true); }},
      {"Lora",
       [](const DeviceMesh& mesh) {
         const auto module = deferred<NetworkImpl>();
         tp::parallelize_module(*module, mesh["tp"], plan());
         tp::add_lora(*module, {"up", "down"}, {.rank = 2, .alpha = 4});
         dtensor::materialize(*module, /*seed=*/5);
         Tensors trained;
         for (const auto& parameter : module->parameters()) {
           if (parameter.requires_grad()) {
             const at::NoGradGuard no_grad;
             at::Tensor(parameter).fill_(0.25);
             trained.push_back(parameter);
           }
         }
         auto y = module->forward(input_of(mesh));
         return Recorded{loss_of(y), trained, module};
       }},
      {"CheckpointedModule",
       [](const DeviceMesh& mesh) {
         const auto module = deferred<NetworkImpl>();
         tp::parallelize_module(*module, mesh["tp"], plan());
         dtensor::materialize(*module, /*seed=*/5);
         dtensor::checkpoint_activations(*module->up);
         dtensor::checkpoint_activations(*module->down);
         auto y = module->forward(input_of(mesh));
         return Recorded{loss_of(y), module->parameters(), module};
       }},
      {"Ddp",
       [](const DeviceMesh& mesh) {
         const auto module = deferred<NetworkImpl>();
         auto wrapper = std::make_shared<DistributedDataParallel<NetworkImpl>>(
             module, mesh["dp"]);
         dtensor::materialize(*module, /*seed=*/5);
         return record_wrapper(wrapper, module->parameters(), input_of(mesh));
       },
       {2, 1}},
      {"DdpOfTensorParallel",
       [](const DeviceMesh& mesh) {
         const auto module = deferred<NetworkImpl>();
         tp::parallelize_module(*module, mesh["tp"], plan());
         auto wrapper = std::make_shared<DistributedDataParallel<NetworkImpl>>(
             module, mesh["dp"]);
         dtensor::materialize(*module, /*seed=*/5);
         return record_wrapper(wrapper, module->parameters(), input_of(mesh));
       },
       {2, 2}},
      {"DdpWithSyncBatchNorm",
       [](const DeviceMesh& mesh) {
         const auto module = std::make_shared<NormalizedImpl>();
         for (auto& parameter : module->parameters()) {
           const at::NoGradGuard no_grad;
           parameter.copy_(wave(parameter.sizes(), 0.2));
         }
         ddp::convert_sync_batchnorm(*module, mesh["dp"]);
         auto wrapper =
             std::make_shared<DistributedDataParallel<NormalizedImpl>>(
                 module, mesh["dp"]);
         return record_wrapper(wrapper, module->parameters(), input_of(mesh));
       },
       {2, 1}},
  };
}

template <class Module>
DroppedCase fully_sharded(
    std::string name,
    std::vector<int64_t> shape,
    const fsdp::FullyShardOptions& options = {},
    bool has_units = false) {
  return {
      std::move(name),
      [=](const DeviceMesh& mesh) {
        const auto module = deferred<Module>();
        if (mesh.size("tp") > 1) {
          if constexpr (std::is_same_v<Module, NetworkImpl>) {
            tp::parallelize_module(*module, mesh["tp"], plan());
          }
        }
        if (has_units) {
          for (const auto& child : module->children()) {
            fsdp::fully_shard(*child, mesh["dp"], options);
          }
        }
        auto wrapper = std::make_shared<fsdp::FullyShardedDataParallel<Module>>(
            module, mesh["dp"], options);
        dtensor::materialize(*module, /*seed=*/5);
        return record_wrapper(wrapper, module->parameters(), input_of(mesh));
      },
      std::move(shape)};
}

std::vector<DroppedCase> fully_sharded_cases() {
  const fsdp::FullyShardOptions kept{.reshard_after_forward = false};
  const fsdp::FullyShardOptions mixed{
      .mixed_precision = {
          .param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}};
  return {
      fully_sharded<BareImpl>("FullyShardedParameters", {2, 1}),
      fully_sharded<NetworkImpl>("FullySharded", {2, 1}),
      fully_sharded<NetworkImpl>("FullyShardedUnits", {2, 1}, {}, true),
      fully_sharded<NetworkImpl>("FullyShardedKept", {2, 1}, kept, true),
      fully_sharded<NetworkImpl>("FullyShardedMixed", {3, 1}, mixed, true),
      fully_sharded<NetworkImpl>(
          "FullyShardedTensorParallel", {2, 2}, {}, true),
  };
}

using Gradients = std::map<size_t, at::Tensor>;

/// Has `gradients` take a copy of what backward brings each leaf.
void collect_gradients(
    const Tensors& leaves,
    const std::shared_ptr<Gradients>& gradients) {
  for (size_t i = 0; i < leaves.size(); ++i) {
    leaves[i].register_hook([gradients, i](const at::Tensor& gradient) {
      const at::NoGradGuard no_grad;
      const auto* impl = dtensor::dtensor_impl(gradient);
      (*gradients)[i] = (impl ? impl->local() : gradient).clone();
    });
  }
}

/// Counts the meshes of a case: an object that each owns.
struct Witness {
  std::shared_ptr<int> alive;
};

enum class Keep { kAll, kWrapper, kLoss };

/// The gradients of this rank. With kLoss everything but the loss is dropped
/// before backward, with kWrapper everything but the loss and the model.
Gradients backward_of(
    const weft::test::RankContext& self,
    const DroppedCase& each,
    Keep keep) {
  const auto gradients = std::make_shared<Gradients>();
  const auto alive = std::make_shared<int>(0);
  {
    auto mesh = self.mesh(each.shape, {"dp", "tp"});
    mesh.extension<Witness>().alive = alive;
    auto recorded = each.record(mesh);
    collect_gradients(recorded.leaves, gradients);
    const auto loss = recorded.loss;
    if (keep != Keep::kAll) {
      mesh = DeviceMesh();
      recorded.leaves.clear();
      recorded.loss.reset();
    }
    if (keep == Keep::kLoss) {
      recorded.owner = nullptr;
    }
    loss.backward();
  }
  EXPECT_EQ(alive.use_count(), 1) << "something outlives the graph";
  return *gradients;
}

void expect_same(const Gradients& actual, const Gradients& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [leaf, gradient] : expected) {
    ASSERT_TRUE(actual.contains(leaf)) << leaf;
    EXPECT_TRUE(at::equal(actual.at(leaf), gradient)) << "leaf " << leaf;
  }
}

struct DroppedGraph : ::testing::TestWithParam<DroppedCase> {
  static int ranks() {
    return static_cast<int>(c10::multiply_integers(GetParam().shape));
  }
};

struct FullyShardedGraph : DroppedGraph {};

TEST_P(FullyShardedGraph, OwnsTheMeshAndRefusesBackwardWithoutTheModel) {
  run_ranks(ranks(), [](weft::test::RankContext& self) {
    const auto expected = backward_of(self, GetParam(), Keep::kAll);
    EXPECT_FALSE(expected.empty());
    expect_same(backward_of(self, GetParam(), Keep::kWrapper), expected);
    EXPECT_THAT(
        [&] { backward_of(self, GetParam(), Keep::kLoss); },
        ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(
            "Keep the FullyShardedDataParallel that ran forward until backward "
            "has ended")));
  });
}

TEST_P(DroppedGraph, OwnsWhatItsBackwardNeeds) {
  run_ranks(ranks(), [](weft::test::RankContext& self) {
    const auto expected = backward_of(self, GetParam(), Keep::kAll);
    EXPECT_FALSE(expected.empty());
    expect_same(backward_of(self, GetParam(), Keep::kWrapper), expected);
    expect_same(backward_of(self, GetParam(), Keep::kLoss), expected);
  });
}

std::string name_of(const ::testing::TestParamInfo<DroppedCase>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    Kernels,
    DroppedGraph,
    ::testing::ValuesIn(kernel_cases()),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Wrappers,
    DroppedGraph,
    ::testing::ValuesIn(wrapper_cases()),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Wrappers,
    FullyShardedGraph,
    ::testing::ValuesIn(fully_sharded_cases()),
    name_of);

} // namespace
} // namespace weft
