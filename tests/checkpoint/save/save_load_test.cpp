// Saving and loading over meshes: every layout to every other, what is read,
// and what goes wrong on one rank only.

#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"

#include <csignal>

#include <sys/resource.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/files/error.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/store/store.h"
#include "ddp/distributed_data_parallel.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"
#include "tp/parallelize_module.h"
#include "tp/style.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SaveLoad : public ::testing::Test {
 protected:
  test::TempFolder temp_;
  const fs::path folder_ = temp_.path();
};

struct Layout {
  int64_t dp;
  int64_t tp;
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << "dp" << layout.dp << "tp" << layout.tp;
}

at::Tensor
values(at::IntArrayRef sizes, at::ScalarType dtype, double start = 0) {
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    numel *= size;
  }
  auto whole = at::arange(numel, at::kDouble).add_(start).view(sizes);
  return dtype == at::kBool ? whole.fmod(3).eq(1) : whole.to(dtype);
}

struct Case {
  std::string name;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  Placements placements;
};

// Sizes that no mesh divides, shards that are empty, shards of one dim by both
// mesh dims, every kind of dtype.
std::vector<Case> cases(int64_t shift) {
  const std::vector<Placements> two_dims = {
      {Replicate(), Replicate()},
      {Replicate(), Shard(0)},
      {Replicate(), Shard(1)},
      {Shard(0), Shard(1)},
      {Shard(1), Shard(0)},
      {Shard(0), Shard(0)},
      {Shard(1), Replicate()}};
  std::vector<Case> all;
  const auto add =
      [&](std::string name, std::vector<int64_t> sizes, at::ScalarType dtype) {
        for (size_t i = 0; i < two_dims.size(); ++i) {
          all.push_back(
              {name + std::to_string(i),
               sizes,
               dtype,
               two_dims[(i + shift) % two_dims.size()]});
        }
      };
  add("even", {8, 12}, at::kFloat);
  add("uneven", {7, 5}, at::kFloat);
  add("short", {2, 3}, at::kBFloat16);
  add("wide", {1, 9}, at::kDouble);
  add("flags", {5, 3}, at::kBool);
  add("counts", {3, 2, 4}, at::kLong);
  add("nothing", {0, 3}, at::kFloat);
  all.push_back({"number", {}, at::kFloat, {Replicate(), Replicate()}});
  return all;
}

StateDicts
make_state(const mesh::DeviceMesh& mesh, int64_t shift, bool with_values) {
  dtensor::StateDict dict;
  double start = 1;
  for (const auto& [name, sizes, dtype, placements] : cases(shift)) {
    auto whole = values(sizes, dtype, start);
    if (!with_values) {
      whole.zero_();
    }
    dict[name] = dtensor::distribute_tensor(
        whole, mesh, placements, /*src_data_rank=*/std::nullopt);
    start += 100;
  }
  dict["plain"] =
      with_values ? values({6}, at::kInt, 7) : at::zeros({6}, at::kInt);
  return {{"model", std::move(dict)}};
}

void expect_values(const StateDicts& dicts, int64_t shift) {
  double start = 1;
  for (const auto& [name, sizes, dtype, placements] : cases(shift)) {
    const auto whole = dtensor::full_tensor(dicts.at("model").at(name));
    EXPECT_TRUE(at::equal(whole, values(sizes, dtype, start))) << name;
    start += 100;
  }
  EXPECT_TRUE(
      at::equal(dicts.at("model").at("plain"), values({6}, at::kInt, 7)));
}

class EveryMesh : public SaveLoad,
                  public ::testing::WithParamInterface<Layout> {};

TEST_P(EveryMesh, LoadsOnEveryOther) {
  const auto [dp, tp] = GetParam();
  run_ranks(static_cast<int>(dp * tp), [&](RankContext& self) {
    const auto mesh = self.mesh({dp, tp}, {"dp", "tp"});
    const auto saved =
        save(folder_, make_state(mesh, 0, true), {.step = 3, .fsync = false});
    EXPECT_EQ(saved, folder_ / "step-3");
  });
  for (const auto& [to_dp, to_tp] :
       {Layout{1, 1}, Layout{2, 2}, Layout{1, 3}, Layout{4, 1}}) {
    const Layout to{to_dp, to_tp};
    SCOPED_TRACE(testing::Message() << "to " << to);
    run_ranks(static_cast<int>(to_dp * to_tp), [&](RankContext& self) {
      const auto mesh = self.mesh({to_dp, to_tp}, {"dp", "tp"});
      for (const bool all_or_nothing : {true, false}) {
        for (const int64_t shift : {0, 2, 3}) {
          auto dicts = make_state(mesh, shift, false);
          load(folder_ / "step-3", dicts, {.all_or_nothing = all_or_nothing});
          expect_values(dicts, shift);
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Mesh,
    EveryMesh,
    ::testing::Values(Layout{1, 1}, Layout{2, 2}, Layout{3, 1}, Layout{1, 4}),
    ::testing::PrintToStringParamName());

// 4 ranks, one sharded and one replicated tensor: the file bytes are those of
// the state once, and every rank wrote a share.
TEST_F(SaveLoad, EachPartIsWrittenOnceAndByAllRanksAlike) {
  const int64_t rows = 1024;
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    StateDicts dicts;
    for (int64_t i = 0; i < 8; ++i) {
      dicts["model"]["w" + std::to_string(i)] = dtensor::distribute_tensor(
          at::ones({rows, 64}),
          mesh,
          {Replicate(), i % 2 == 0 ? Shard(0) : Replicate()},
          std::nullopt);
    }
    save(folder_, dicts, {.step = 1, .fsync = false});
  });
  const auto manifest = read_manifest(folder_ / "step-1");
  const int64_t whole = 8 * rows * 64 * 4;
  ASSERT_EQ(manifest.files.size(), 4U);
  int64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) {
    bytes += file.bytes - file.header_bytes;
    EXPECT_EQ(file.bytes - file.header_bytes, whole / 4) << name;
  }
  EXPECT_EQ(bytes, whole);
}

TEST_F(SaveLoad, ARankReadsLittleMoreThanItsPart) {
  const int64_t rows = 4096; // 16 MiB; a rank of four holds 4.
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({1, 2}, {"dp", "tp"});
    StateDicts dicts;
    dicts["model"]["w"] = dtensor::distribute_tensor(
        values({rows, 1024}, at::kFloat),
        mesh,
        {Replicate(), Shard(0)},
        std::nullopt);
    save(folder_, dicts, {.step = 1, .fsync = false});
  });
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({1, 4}, {"dp", "tp"});
    StateDicts dicts;
    auto& w = dicts["model"]["w"];
    w = dtensor::distribute_tensor(
        at::zeros({rows, 1024}), mesh, {Replicate(), Shard(0)}, std::nullopt);
    const auto stats = load(folder_ / "step-1", dicts);
    const int64_t own = rows / 4 * 1024 * 4;
    EXPECT_GE(stats.bytes_read, own);
    EXPECT_LT(stats.bytes_read, own + (2 << 20));
    EXPECT_TRUE(at::equal(
        dtensor::to_local(w),
        values({rows, 1024}, at::kFloat)
            .narrow(0, self.rank * rows / 4, rows / 4)));
  });
}

// Rows as users give them, and a dim cut by the later mesh dim first.
TEST_F(SaveLoad, CutsOfAnySizesAndOrder) {
  const auto whole = values({9, 3}, at::kFloat, 1);
  const auto given = [](int64_t ranks) {
    std::vector<int64_t> rows(ranks, 0);
    rows.back() = 9;
    return Shard(0, rows);
  };
  const auto lists = [&](const mesh::DeviceMesh& mesh) {
    return std::vector<Placements>{
        {given(mesh.size(0)), Shard(1)},
        {Replicate(), given(mesh.size(1))},
        {dtensor::StridedShard(0, mesh.size(1)), Shard(0)},
        // Of one rank, the later cut would leave the rows to the first.
        {dtensor::StridedShard(0, mesh.size(1)),
         mesh.size(1) > 1 ? given(mesh.size(1)) : Shard(0)}};
  };
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    StateDicts dicts;
    for (const auto& placements : lists(mesh)) {
      dicts["model"]["w" + std::to_string(dicts["model"].size())] =
          dtensor::distribute_tensor(whole, mesh, placements, std::nullopt);
    }
    save(folder_, dicts, {.step = 1, .fsync = false});
  });
  for (const auto& [dp, tp] : {Layout{1, 1}, Layout{2, 2}, Layout{4, 1}}) {
    run_ranks(static_cast<int>(dp * tp), [&](RankContext& self) {
      const auto mesh = self.mesh({dp, tp}, {"dp", "tp"});
      for (const auto& placements : lists(mesh)) {
        StateDicts dicts;
        for (size_t i = 0; i < lists(mesh).size(); ++i) {
          dicts["model"]["w" + std::to_string(i)] = dtensor::distribute_tensor(
              at::zeros_like(whole), mesh, placements, std::nullopt);
        }
        load(folder_ / "step-1", dicts);
        for (const auto& [name, tensor] : dicts["model"]) {
          EXPECT_TRUE(at::equal(dtensor::full_tensor(tensor), whole)) << name;
        }
      }
    });
  }
}

TEST_F(SaveLoad, OneRankNeedsNoWorld) {
  const auto w = values({3, 4}, at::kFloat);
  save(folder_, {{"model", {{"w", w}}}}, {.step = 5});
  const auto target = at::zeros({4, 3}).t();
  load(folder_ / "step-5", {{"model", {{"w", target}}}});
  EXPECT_TRUE(at::equal(target, w)) << "a target that is not contiguous";
}

TEST_F(SaveLoad, WhatCannotBeSavedIsNamed) {
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 1}, {"dp", "tp"});
    const auto partial = dtensor::from_local(
        at::ones({2}), mesh, {dtensor::Partial(), Replicate()});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          save(folder_, {{"model", {{"sum", partial}}}}, {});
        }),
        AllOf(HasSubstr("model.sum"), HasSubstr("Redistribute it first")));
    const auto part = dtensor::distribute_tensor(
        at::ones({2}), mesh["tp"], {Shard(0)}, std::nullopt);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          save(folder_, {{"model", {{"part", part}}}}, {});
        }),
        AllOf(
            HasSubstr("a mesh of 1 of the 2 ranks"),
            HasSubstr("state_dict()")));
    at::Tensor deferred;
    {
      const dtensor::DeferredInit scope;
      deferred = torch::randn({4});
    }
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          save(folder_, {{"model", {{"d", deferred}}}}, {});
        }),
        HasSubstr("materialize"));
  });
  EXPECT_TRUE(list_steps(folder_).empty());
}

TEST_F(SaveLoad, RanksWithOtherTensorsAreNamed) {
  run_ranks(3, [&](RankContext& self) {
    const auto mesh = self.mesh({3}, {"dp"});
    const int64_t rows = self.rank == 2 ? 5 : 4;
    StateDicts dicts;
    dicts["model"]["w"] = dtensor::on_mesh(at::zeros({rows}), mesh);
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>(
            [&] { save(folder_, dicts, {.step = 1}); }),
        AllOf(
            HasSubstr("rank 0 has model.w Float [4]"),
            HasSubstr("rank 2 has model.w Float [5]")));
  });
  EXPECT_TRUE(list_steps(folder_).empty());
}

/// Files of this process can grow to 64 KiB only while it lives.
class SmallFiles {
 public:
  SmallFiles() {
    std::signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    auto small = before_;
    small.rlim_cur = 64 << 10;
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~SmallFiles() { EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0); }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  rlimit before_{};
};

// The save fails in the middle of a write, as on a full disk.
TEST_F(SaveLoad, AFailedSaveLeavesAllAsItWas) {
  std::optional<SmallFiles> limit; // rank 0's
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    StateDicts dicts;
    dicts["model"]["w"] = dtensor::on_mesh(at::ones({1 << 18}), mesh);
    // What ranks share memory through is a file, too.
    Saver saver(folder_, {.world = self.world, .fsync = false});
    saver.save(dicts, {.step = 1});
    auto group = self.world.group();
    group.barrier();
    if (self.rank == 0) {
      limit.emplace();
    }
    group.barrier();
    const auto message =
        message_of_thrown<SaveError>([&] { saver.save(dicts, {.step = 2}); });
    group.barrier();
    if (self.rank == 0) {
      limit.reset();
    }
    EXPECT_THAT(
        message,
        AllOf(
            HasSubstr("step 2 was not saved: rank 0 could not write"),
            HasSubstr("File too large")));
    group.barrier();
    if (self.rank == 0) {
      EXPECT_EQ(remove_temporaries(folder_), 0) << "it cleaned up already";
    }
    group.barrier();
    saver.save(dicts, {.step = 3});
  });
  ASSERT_EQ(list_steps(folder_).size(), 2U);
  EXPECT_EQ(list_steps(folder_)[0].step, 3);
  EXPECT_EQ(list_steps(folder_)[1].step, 1);
}

// As DDP, which casts parameters again only when their version has changed.
TEST_F(SaveLoad, WhatIsLoadedIsSeenByWhoKeepsSomethingOfTheParameter) {
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    const torch::nn::Linear module(3, 2);
    const auto dict = dtensor::module_state_dict(*module, mesh);
    save(folder_, {{"model", dict}}, {.step = 1, .fsync = false});
    const auto before = module->weight._version();
    load(step_path(folder_, 1), {{"model", dict}});
    EXPECT_GT(module->weight._version(), before);
    const auto sharded = dtensor::distribute_tensor(
        at::ones({4}), mesh, {Shard(0)}, std::nullopt);
    dtensor::on_mesh(sharded, mesh).zero_();
    EXPECT_EQ(sharded._version(), dtensor::on_mesh(sharded, mesh)._version());
    EXPECT_GT(sharded._version(), 0);
  });
}

TEST_F(SaveLoad, ASavedStepIsNeverOverwritten) {
  save(folder_, {{"model", {{"w", at::ones({2})}}}}, {.step = 1});
  EXPECT_THAT(
      message_of_thrown<SaveError>([&] {
        save(folder_, {{"model", {{"w", at::zeros({2})}}}}, {.step = 1});
      }),
      HasSubstr("step-1"));
  const auto target = at::zeros({2});
  load(folder_ / "step-1", {{"model", {{"w", target}}}});
  EXPECT_TRUE(at::equal(target, at::ones({2})));
}

// A flipped bit in what rank 1 reads: both ranks refuse it, and no tensor of
// either has changed.
TEST_F(SaveLoad, DamageThatOneRankMeetsStopsAll) {
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({1, 2}, {"dp", "tp"});
    StateDicts dicts;
    auto& w = dicts["model"]["w"];
    w = dtensor::distribute_tensor(
        at::ones({64, 8}), mesh, {Replicate(), Shard(0)}, std::nullopt);
    save(folder_, dicts, {.step = 1, .fsync = false});
    auto group = self.world.group();
    if (self.rank == 0) {
      const auto manifest = read_manifest(folder_ / "step-1");
      const auto& chunk = manifest.tensors.at("model.w").chunks.at(1);
      ASSERT_EQ(chunk.offset, (std::vector<int64_t>{32, 0}));
      std::fstream file(
          folder_ / "step-1" / chunk.file,
          std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(chunk.begin + 17);
      file.put('\x55');
    }
    group.barrier();
    const at::Tensor local = dtensor::to_local(w).detach();
    local.fill_(7);
    EXPECT_THAT(
        message_of_thrown<CheckpointError>(
            [&] { load(folder_ / "step-1", dicts); }),
        AllOf(
            HasSubstr("model.w"), HasSubstr("shard-"), HasSubstr("(rank 1)")));
    EXPECT_TRUE(at::equal(local, at::full({32, 8}, 7.0F)));
  });
}

// ---- a training run ---------------------------------------------------------

struct Net : torch::nn::Module {
  Net() {
    up = register_module("up", torch::nn::Linear(6, 10));
    down = register_module("down", torch::nn::Linear(10, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(x))); }
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
};

template <class Optimizer>
struct Job {
  Job(const mesh::DeviceMesh& mesh, const Optimizer& make) {
    {
      const dtensor::DeferredInit scope;
      net = std::make_shared<Net>();
    }
    tp::parallelize_module(
        *net,
        mesh["tp"],
        {{"up", tp::ColwiseParallel()}, {"down", tp::RowwiseParallel()}});
    dtensor::materialize(*net, 5);
    ddp = std::make_unique<ddp::DistributedDataParallel<Net>>(net, mesh["dp"]);
    optimizer = make(net->parameters());
  }

  void train(int64_t first, int64_t last) {
    const int64_t rank = ddp->mesh().coordinate(int64_t{0});
    for (int64_t step = first; step < last; ++step) {
      const auto x =
          at::sin(at::arange(4 * 6, at::kFloat)
                      .add_(static_cast<double>(step * 31 + rank * 7))
                      .view({4, 6}));
      (*ddp)(x).square().mean().backward();
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  StateDicts state() {
    return {
        {"model", ddp->state_dict()},
        {"optimizer", ddp->optimizer_state_dict(*optimizer)}};
  }

  std::shared_ptr<Net> net;
  std::unique_ptr<ddp::DistributedDataParallel<Net>> ddp;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

template <class Make>
void expect_exact_resume(const fs::path& folder, const Make& make) {
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    Job straight(mesh, make);
    straight.train(0, 6);

    Job first(mesh, make);
    first.train(0, 3);
    save(folder, first.state(), {.step = 3, .fsync = false});

    Job second(mesh, make);
    auto state = second.state();
    load(folder / "step-3", state);
    second.ddp->load_optimizer_state_dict(
        *second.optimizer, state.at("optimizer"));
    second.ddp->set_bucket_layout(first.ddp->bucket_names());
    second.train(3, 6);

    const auto expected = straight.state();
    for (const auto& [part, dict] : second.state()) {
      for (const auto& [name, tensor] : dict) {
        EXPECT_TRUE(at::equal(
            dtensor::to_local(tensor),
            dtensor::to_local(expected.at(part).at(name))))
            << part << "." << name;
      }
    }
  });
}

using Parameters = std::vector<at::Tensor>;
using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;

TEST_F(SaveLoad, AdamWGoesOnExactly) {
  expect_exact_resume(folder_, [](Parameters parameters) -> OptimizerPointer {
    return std::make_unique<torch::optim::AdamW>(
        std::move(parameters), torch::optim::AdamWOptions(0.02).amsgrad(true));
  });
  const auto manifest = read_manifest(folder_ / "step-3");
  for (const auto* key :
       {"model.up.weight",
        "optimizer.state.up.weight.exp_avg",
        "optimizer.state.up.weight.exp_avg_sq",
        "optimizer.state.up.weight.max_exp_avg_sq",
        "optimizer.state.down.bias.step",
        "optimizer.param_groups.down.bias.lr",
        "optimizer.param_groups.down.bias.betas"}) {
    EXPECT_TRUE(manifest.tensors.contains(key)) << key;
  }
  const auto& moment = manifest.tensors.at("optimizer.state.up.weight.exp_avg");
  EXPECT_EQ(moment.shape, (std::vector<int64_t>{10, 6}));
  EXPECT_EQ(moment.placements, "[R, S(0)]");
  EXPECT_EQ(moment.mesh, "dp=2 tp=2");
}

TEST_F(SaveLoad, SgdWithMomentumGoesOnExactly) {
  expect_exact_resume(folder_, [](Parameters parameters) -> OptimizerPointer {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9));
  });
}

TEST_F(SaveLoad, OptimizersThatCannotBeReadAreRefused) {
  run_ranks(1, [&](RankContext& self) {
    const auto mesh = self.mesh({1}, {"dp"});
    Net net;
    torch::optim::LBFGS optimizer(net.parameters());
    EXPECT_THAT(
        message_of_thrown<c10::NotImplementedError>(
            [&] { dtensor::optimizer_state_dict(optimizer, net, mesh); }),
        HasSubstr("AdamW"));
    Net other;
    torch::optim::SGD foreign(other.parameters(), 0.1);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { dtensor::optimizer_state_dict(foreign, net, mesh); }),
        HasSubstr("not a parameter of the module"));
  });
}

} // namespace
} // namespace weft::checkpoint
