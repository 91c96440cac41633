// What one GPU can show. Without a usable one every test here is skipped, and
// says why; scripts/gpu_check.sh runs them where there is one. With
// WEFT_TEST_DEVICE=cpu those that need no NCCL run on the CPU, to test the
// tests.

#include <atomic>
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "data/batch_loader.h"
#include "dtensor/fused/fused_ops.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/kernels/cross_entropy.h"
#include "dtensor/random/random.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/backends/nccl_backend.h"
#include "mesh/bootstrap/env.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/communicator/reduction.h"
#include "mesh/device/device.h"
#include "mesh/device/device_plugin.h"
#include "mesh/error/error.h"
#include "train/setup/adamw.h"
#include "train/setup/loss.h"
#include "train/setup/train_job.h"

namespace weft {
namespace {

using mesh::ReduceOp;

/// Opens the GPU once, before anything asks libtorch about devices; "" if it
/// can be used.
class Gpu final : public ::testing::Environment {
 public:
  void SetUp() override {
    if (is_cpu()) {
      return;
    }
    try {
      device_ = mesh::open_device("cuda", 0, 1);
      at::globalContext().setAllowTF32CuBLAS(false);
    } catch (const c10::Error& error) {
      reason_ = error.what_without_backtrace();
    }
  }
  static bool is_cpu() {
    return mesh::env::get("WEFT_TEST_DEVICE").value_or("") == "cpu";
  }
  static const std::string& reason() { return instance().reason_; }
  static c10::Device device() { return instance().device_; }
  static Gpu& instance() {
    // Owned by GoogleTest.
    static auto* const gpu =
        static_cast<Gpu*>(::testing::AddGlobalTestEnvironment(new Gpu));
    return *gpu;
  }

 private:
  std::string reason_;
  c10::Device device_{c10::DeviceType::CPU};
};

const bool kRegistered = (Gpu::instance(), true);

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kRegistered);
    if (!Gpu::reason().empty()) {
      GTEST_SKIP() << "needs a CUDA GPU: " << Gpu::reason();
    }
  }
  static c10::Device device() { return Gpu::device(); }
  static at::TensorOptions on_gpu(at::ScalarType dtype = at::kFloat) {
    return at::TensorOptions(dtype).device(device());
  }
};

void expect_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    double tolerance,
    const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const auto a = actual.cpu().to(at::kDouble);
  const auto b = expected.cpu().to(at::kDouble);
  const double scale = std::max(1.0, b.abs().max().item<double>());
  EXPECT_LE((a - b).abs().max().item<double>(), tolerance * scale) << what;
}

// --- kernels ----------------------------------------------------------------

TEST_F(GpuTest, RandomNumbersAreTheCpusBitForBit) {
  const std::vector<int64_t> whole{57, 33, 129};
  const dtensor::LocalBox box{{5, 0, 64}, {40, 33, 65}};
  const dtensor::RandomKey key{.seed = 42, .stream = 0x1234567890ULL};
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const auto here = at::empty(box.sizes, dtype);
    const auto there = at::empty(box.sizes, on_gpu(dtype));
    dtensor::fill_uniform(here, box, whole, key, -0.1, 0.3);
    dtensor::fill_uniform(there, box, whole, key, -0.1, 0.3);
    EXPECT_TRUE(at::equal(here, there.cpu())) << dtype;
    dtensor::fill_normal(here, box, whole, key, 0.5, 0.02);
    dtensor::fill_normal(there, box, whole, key, 0.5, 0.02);
    EXPECT_TRUE(at::equal(here, there.cpu())) << dtype;
  }
}

TEST_F(GpuTest, ManyRandomNumbersAreTheCpusBitForBit) {
  const int64_t n = int64_t{1} << 24;
  const dtensor::LocalBox box{{0}, {n}};
  const auto here = at::empty({n});
  const auto there = at::empty({n}, on_gpu());
  dtensor::fill_normal(here, box, {n}, {.seed = 7, .stream = 1}, 0, 1);
  dtensor::fill_normal(there, box, {n}, {.seed = 7, .stream = 1}, 0, 1);
  EXPECT_TRUE(at::equal(here, there.cpu()));
}

TEST_F(GpuTest, RowsAreSummedAsOnTheCpu) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      const auto parts = at::arange(5 * 100003, at::kDouble)
                             .sin()
                             .mul(9)
                             .to(dtype)
                             .view({5, 100003});
      const auto expected = at::empty({100003}, dtype);
      mesh::reduce_rows(expected, parts, op);
      const auto there = at::empty({100003}, on_gpu(dtype));
      const auto parts_there = parts.to(device());
      if (Gpu::is_cpu() ||
          !mesh::cuda_plugin().reduce_rows(there, parts_there, op)) {
        mesh::reduce_rows(there, parts_there, op);
      }
      EXPECT_TRUE(at::equal(there.cpu(), expected)) << dtype;
    }
  }
}

// --- NCCL -------------------------------------------------------------------

class NcclTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (Gpu::is_cpu()) {
      GTEST_SKIP() << "NCCL has no CPU";
    }
  }
};

/// A group of this rank alone that nevertheless goes through NCCL.
mesh::Communicator one_rank_nccl(c10::Device device) {
  return mesh::Communicator(mesh::connect_nccl_backend(
      {.name = "nccl", .rank = 0, .ranks = {0}},
      "nccl",
      c10::make_intrusive<c10d::HashStore>(),
      device,
      mesh::cuda_plugin()));
}

TEST_F(NcclTest, EveryCollectiveRunsOverNccl) {
  auto nccl = one_rank_nccl(device());
  for (const auto dtype :
       {at::kFloat, at::kBFloat16, at::kLong, at::kShort, at::kBool}) {
    const auto x = at::arange(24, on_gpu(at::kLong)).remainder(5).to(dtype);
    auto y = x.clone();
    nccl.all_reduce(y).wait();
    EXPECT_TRUE(at::equal(x, y)) << dtype;
    nccl.broadcast(y, 0).wait();
    auto gathered = at::zeros_like(x);
    nccl.all_gather(gathered, x).wait();
    EXPECT_TRUE(at::equal(x, gathered)) << dtype;
    auto reduced = at::zeros_like(x);
    nccl.reduce_scatter(reduced, x).wait();
    EXPECT_TRUE(at::equal(x, reduced)) << dtype;
    std::vector<at::Tensor> received{at::zeros_like(x)};
    nccl.all_to_all(received, {x}).wait();
    EXPECT_TRUE(at::equal(x, received[0])) << dtype;
    // Not contiguous: packed and unpacked around the message.
    auto matrix = x.view({4, 6}).t();
    nccl.all_reduce(matrix).wait();
    EXPECT_TRUE(at::equal(matrix, x.view({4, 6}).t())) << dtype;
  }
  nccl.barrier();
  nccl.check();
}

TEST_F(NcclTest, WaitOrdersTheStreamAndTheDeviceTellsTheEnd) {
  auto nccl = one_rank_nccl(device());
  auto backend = mesh::connect_nccl_backend(
      {.name = "ends", .rank = 0, .ranks = {0}},
      "ends",
      c10::make_intrusive<c10d::HashStore>(),
      device(),
      mesh::cuda_plugin());
  // Queued in order, read at last: every result has to be the one before it
  // plus one, though memory is freed and used again all the time.
  auto x = at::zeros({1 << 20}, on_gpu());
  for (int i = 0; i < 50; ++i) {
    auto next = x + 1;
    nccl.all_reduce(next).wait();
    x = next.clone();
  }
  EXPECT_EQ(x.min().item<float>(), 50);
  EXPECT_EQ(x.max().item<float>(), 50);

  std::atomic<bool> ended = false;
  auto pending = backend->all_reduce(x, ReduceOp::kSum);
  ASSERT_TRUE(pending->when_completed([&] { ended = true; }));
  pending->wait();
  static_cast<void>(x.sum().item<float>());
  for (int i = 0; i < 2000 && !ended; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(ended);
  EXPECT_TRUE(pending->is_completed());
  EXPECT_EQ(backend->failure().reason, "");
}

TEST_F(NcclTest, AnAbortedGroupSaysSo) {
  auto nccl = one_rank_nccl(device());
  nccl.abort();
  auto x = at::ones({4}, on_gpu());
  EXPECT_THROW(nccl.all_reduce(x), mesh::CommError);
}

// --- DTensors and training --------------------------------------------------

mesh::World one_rank_world() {
  mesh::WorldOptions options;
  options.backend = Gpu::is_cpu() ? "gloo" : "nccl";
  return mesh::World::from_store({}, 0, 1, options);
}

config::Recipe tiny_recipe(const std::string& dtype) {
  config::Recipe recipe;
  recipe.name = "gpu";
  recipe.mesh = {1, 1};
  recipe.model.dim = 64;
  recipe.model.layers = 2;
  recipe.model.heads = 4;
  recipe.model.kv_heads = 2;
  recipe.model.ffn_dim = 160;
  recipe.model.vocab_size = 96;
  recipe.data.sequence_length = 32;
  recipe.train.global_batch_size = 4;
  recipe.train.micro_batch_size = 4;
  recipe.train.dtype = config::choice_of<config::TrainDtype>(dtype).value();
  return recipe;
}

struct Trained {
  std::vector<double> losses;
  at::Tensor weight;
};

Trained train(const mesh::World& world, const std::string& dtype, int steps) {
  const auto mesh = mesh::DeviceMesh::create(world, {1, 1}, {"dp", "tp"});
  auto job = train::make_train_job(tiny_recipe(dtype), mesh);
  Trained result;
  for (int step = 0; step < steps; ++step) {
    const auto data =
        at::arange(4 * 33).mul(31 + step).remainder(96).view({4, 33});
    const auto batch = data::to_device(
        {.input = data.narrow(1, 0, 32).contiguous(),
         .target = data.narrow(1, 1, 32).contiguous()},
        world.device());
    auto loss =
        train::token_loss((*job.ddp)(batch.input), batch.target, 4 * 32);
    loss.backward();
    result.losses.push_back(loss.item<double>());
    job.optimizer->step();
    job.optimizer->zero_grad();
  }
  result.weight =
      dtensor::full_tensor(
          job.model->named_parameters()["model.embed_tokens.weight"].detach())
          .cpu()
          .to(at::kFloat);
  return result;
}

TEST_F(GpuTest, ParametersAreBornWithTheCpusBits) {
  const auto here = train(mesh::World::from_store({}, 0, 1), "float32", 0);
  const auto there = train(one_rank_world(), "float32", 0);
  EXPECT_TRUE(at::equal(here.weight, there.weight));
}

TEST_F(GpuTest, ALlamaTrainsToTheCpusLosses) {
  const auto here = train(mesh::World::from_store({}, 0, 1), "float32", 10);
  const auto there = train(one_rank_world(), "float32", 10);
  for (size_t i = 0; i < here.losses.size(); ++i) {
    EXPECT_NEAR(there.losses[i], here.losses[i], 1e-4 * here.losses[i]) << i;
  }
  EXPECT_LT(there.losses.back(), there.losses.front());
}

TEST_F(GpuTest, BFloat16TrainsToTheCpusLosses) {
  const auto here = train(mesh::World::from_store({}, 0, 1), "bfloat16", 10);
  const auto there = train(one_rank_world(), "bfloat16", 10);
  for (size_t i = 0; i < here.losses.size(); ++i) {
    EXPECT_NEAR(there.losses[i], here.losses[i], 2e-2 * here.losses[i]) << i;
  }
}

/// One op, its result and its inputs' gradients, here and on the GPU, on one
/// rank's parts of a mesh of two that communicates nothing.
struct OpCase {
  std::string name;
  std::vector<at::Tensor> inputs;
  std::vector<dtensor::Placements> placements;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> op;
};

std::vector<at::Tensor> run(const OpCase& one, c10::Device device) {
  const auto mesh =
      mesh::DeviceMesh::create(mesh::World::fake(1, 2), {2}, {"tp"});
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    auto input = dtensor::distribute_tensor(
        one.inputs[i].to(device), mesh, one.placements[i], std::nullopt);
    input.set_requires_grad(one.inputs[i].is_floating_point());
    inputs.push_back(std::move(input));
  }
  auto output = one.op(inputs);
  const auto weights =
      at::arange(output.numel(), at::kFloat).sin().view(output.sizes());
  auto total =
      (output *
       dtensor::distribute_tensor(
           weights.to(device), mesh, {dtensor::Replicate()}, std::nullopt))
          .sum();
  total.backward();
  std::vector<at::Tensor> results{
      dtensor::dtensor_impl(output)->local().detach()};
  for (const auto& input : inputs) {
    if (input.grad().defined()) {
      results.push_back(dtensor::dtensor_impl(input.grad())->local());
    }
  }
  return results;
}

at::Tensor numbers(c10::IntArrayRef sizes, double phase) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat)
      .mul(0.7)
      .add(phase)
      .sin()
      .view(sizes);
}

TEST_F(GpuTest, DTensorOpsGiveTheCpusNumbers) {
  using dtensor::Replicate;
  using dtensor::Shard;
  const auto x = numbers({4, 6, 8}, 0.1);
  const std::vector<OpCase> cases{
      {"linear column-wise",
       {x, numbers({12, 8}, 0.2)},
       {{Replicate()}, {Shard(0)}},
       [](const auto& in) { return at::linear(in[0], in[1]); }},
      {"linear row-wise",
       {x, numbers({12, 8}, 0.2)},
       {{Shard(2)}, {Shard(1)}},
       [](const auto& in) { return at::linear(in[0], in[1]); }},
      {"rms_norm of a cut sequence",
       {x, numbers({8}, 0.3)},
       {{Shard(1)}, {Replicate()}},
       [](const auto& in) { return at::rms_norm(in[0], {8}, in[1], 1e-5); }},
      {"attention by heads",
       {numbers({2, 4, 6, 8}, 0.4),
        numbers({2, 4, 6, 8}, 0.5),
        numbers({2, 4, 6, 8}, 0.6)},
       {{Shard(1)}, {Shard(1)}, {Shard(1)}},
       [](const auto& in) {
         return at::scaled_dot_product_attention(
             in[0], in[1], in[2], {}, 0.0, /*is_causal=*/true);
       }},
      {"silu times",
       {x, numbers({4, 6, 8}, 0.7)},
       {{Shard(2)}, {Shard(2)}},
       [](const auto& in) { return at::silu(in[0]) * in[1]; }},
      {"softmax of uneven rows",
       {numbers({5, 7}, 0.8)},
       {{Shard(0)}},
       [](const auto& in) { return at::softmax(in[0], 1); }},
      {"embedding cut by columns",
       {at::arange(12).remainder(7).view({3, 4}), numbers({7, 6}, 0.9)},
       {{Replicate()}, {Shard(1)}},
       [](const auto& in) { return at::embedding(in[1], in[0]); }}};
  for (const auto& one : cases) {
    const auto here = run(one, at::kCPU);
    const auto there = run(one, device());
    ASSERT_EQ(here.size(), there.size()) << one.name;
    for (size_t i = 0; i < here.size(); ++i) {
      EXPECT_EQ(there[i].device(), device()) << one.name;
      expect_close(there[i], here[i], 2e-5, one.name);
    }
  }
}

/// What `op` gives and the gradients of its inputs, here and on the GPU.
void expect_alike(
    const std::string& name,
    const std::vector<at::Tensor>& inputs,
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& op,
    double tolerance) {
  std::vector<std::vector<at::Tensor>> results;
  for (const auto where : {c10::Device(at::kCPU), Gpu::device()}) {
    std::vector<at::Tensor> own;
    for (const auto& input : inputs) {
      own.push_back(input.detach().to(where).set_requires_grad(true));
    }
    const auto output = op(own);
    const auto grad =
        at::arange(output.numel(), at::kFloat).cos().view(output.sizes());
    auto all = torch::autograd::grad(
        {output}, own, {grad.to(output.scalar_type()).to(where)});
    all.push_back(output.detach());
    results.push_back(std::move(all));
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    expect_close(
        results[1][i],
        results[0][i],
        tolerance,
        name + " " + std::to_string(i));
  }
}

TEST_F(GpuTest, FusedOpsGiveTheCpusNumbers) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const double tolerance = dtype == at::kDouble     ? 1e-13
                             : dtype == at::kFloat    ? 1e-6
                             : dtype == at::kBFloat16 ? 8e-3
                                                      : 1e-3;
    const std::string name = c10::toString(dtype);
    const auto swiglu = [](const auto& in) {
      return dtensor::swiglu(in[0], in[1]);
    };
    const auto x = numbers({3, 5, 64}, 0.1).to(dtype);
    const auto y = numbers({3, 5, 64}, 0.2).to(dtype);
    expect_alike(name + " swiglu", {x, y}, swiglu, tolerance);
    // Not whole packs; not dense.
    expect_alike(
        name + " swiglu of 15",
        {x.narrow(2, 0, 1).contiguous(), y.narrow(2, 0, 1).contiguous()},
        swiglu,
        tolerance);
    expect_alike(
        name + " swiglu of parts",
        {x.narrow(2, 3, 7), y.narrow(2, 3, 7)},
        swiglu,
        tolerance);
    const auto heads = numbers({2, 6, 3, 16}, 0.3).to(dtype).transpose(1, 2);
    const auto tables = [&](const at::Tensor& like) {
      return std::pair{
          numbers({6, 16}, 0.4).to(like.options()),
          numbers({6, 16}, 0.5).to(like.options())};
    };
    for (const auto& input :
         {heads, heads.contiguous(), heads[0], heads[0][0]}) {
      expect_alike(
          name + " rotary",
          {input},
          [&](const auto& in) {
            const auto [cos, sin] = tables(in[0]);
            return dtensor::rotary_embedding(in[0], cos, sin);
          },
          tolerance);
    }
  }
}

// The rows' targets, of which some are ignored.
at::Tensor some_classes(int64_t rows, int64_t classes) {
  auto target = at::arange(rows).mul(31).remainder(classes);
  target.slice(0, 2, rows, 5).fill_(-100);
  return target;
}

TEST_F(GpuTest, CrossEntropyGivesTheCpusNumbers) {
  const std::vector<dtensor::CrossEntropyOptions> all_options{
      {},
      {.reduction = at::Reduction::Sum},
      {.reduction = at::Reduction::None},
      {.z_loss = 0.1},
      {.reduction = at::Reduction::None, .z_loss = 0.1},
      {.label_smoothing = 0.2},
      {.label_smoothing = 0.2, .z_loss = 0.1}};
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const double tolerance = dtype == at::kDouble     ? 1e-12
                             : dtype == at::kFloat    ? 1e-5
                             : dtype == at::kBFloat16 ? 8e-3
                                                      : 2e-3;
    // Fewer than a warp's packs, odd ones, more than a block's.
    for (const int64_t classes : {5, 64, 1001, 8192}) {
      for (size_t i = 0; i < all_options.size(); ++i) {
        const auto loss = [&](const auto& in) {
          return dtensor::cross_entropy(
              in[0],
              some_classes(37, classes).to(in[0].device()),
              all_options[i]);
        };
        const auto name = c10::str(dtype, " ", classes, " options ", i, ", ");
        const auto logits = numbers({37, classes}, 0.1).mul(5).to(dtype);
        expect_alike(name, {logits}, loss, tolerance);
      }
    }
  }
}

TEST_F(GpuTest, CrossEntropyHasASecondDerivative) {
  const auto second = [](const auto& in) {
    const auto loss = dtensor::cross_entropy(
        in[0],
        some_classes(12, 33).to(in[0].device()),
        {.reduction = at::Reduction::Sum});
    return torch::autograd::grad(
        {loss}, {in[0]}, {}, std::nullopt, /*create_graph=*/true)[0];
  };
  expect_alike("second", {numbers({12, 33}, 0.1).mul(3)}, second, 1e-5);
}

// Without copies in float: the probabilities alone would be four times it.
TEST_F(GpuTest, CrossEntropyOfBFloat16TakesTheMemoryOfItsGradient) {
  if (Gpu::is_cpu()) {
    GTEST_SKIP() << "the CPU's is libtorch's";
  }
  const int64_t rows = 4096;
  const int64_t classes = 32000;
  auto logits = at::zeros({rows, classes}, on_gpu(at::kBFloat16));
  logits.set_requires_grad(true);
  const auto target = some_classes(rows, classes).to(device());
  const double before = mesh::peak_device_mb(device()).value();
  dtensor::cross_entropy(logits, target).backward();
  const double gradient = rows * classes * 2 / 1e6;
  EXPECT_LE(mesh::peak_device_mb(device()).value(), before + 1.1 * gradient);
}

TEST_F(GpuTest, MemoryIsCountedAndBatchesArriveWhole) {
  const auto tokens = at::arange(1 << 16).view({64, 1024});
  for (int i = 0; i < 20; ++i) { // Pinned memory is used again meanwhile.
    const auto there =
        data::to_device({.input = tokens + i, .target = tokens - i}, device());
    EXPECT_EQ(there.input.device(), device());
    EXPECT_TRUE(at::equal(there.input.cpu(), tokens + i));
    EXPECT_TRUE(at::equal(there.target.cpu(), tokens - i));
  }
  const auto big = at::empty({1 << 26}, on_gpu(at::kByte));
  if (device().is_cuda()) {
    EXPECT_GE(mesh::peak_device_mb(device()).value(), 64);
  }
}

} // namespace
} // namespace weft
