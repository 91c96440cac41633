// What FullyShardedDataParallel sends, keeps and refuses.
#include "fsdp/fully_sharded_data_parallel.h"

#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/error/error.h"
#include "tests/fsdp/train_models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

using Fsdp = FullyShardedDataParallel<TestModel>;

/// A Chain of five units.
struct Sharded {
  explicit Sharded(
      const mesh::DeviceMesh& dp,
      bool calls = true,
      const FullyShardOptions& options = {},
      const ScheduleOptions& schedule = {})
      : module(deferred<Chain>(calls)) {
    for (auto* unit : module->units()) {
      fully_shard(*unit, dp, options);
    }
    model.emplace(
        std::static_pointer_cast<TestModel>(module), dp, options, schedule);
    dtensor::materialize(*module, 1);
  }

  at::Tensor loss(int64_t rank, int64_t step = 0) {
    return (*model)(rows_of_numbers(step, rank)).pow(2).mean();
  }
  at::Tensor gradient(size_t parameter) const {
    return module->parameters().at(parameter).grad();
  }
  std::vector<at::Tensor> whole_gradients() const {
    std::vector<at::Tensor> result;
    for (const auto& parameter : module->parameters()) {
      result.push_back(
          parameter.grad().defined()
              ? dtensor::full_tensor(parameter.grad()).clone()
              : at::Tensor());
    }
    return result;
  }

  std::shared_ptr<Chain> module;
  std::optional<Fsdp> model;
};

/// How often each collective was called, by its name.
std::map<std::string, int> calls_of(const mesh::DeviceMesh& dp) {
  std::map<std::string, int> counts;
  for (const auto& entry : dp.group(int64_t{0}).flight_recorder().entries()) {
    ++counts[entry.op];
  }
  return counts;
}

TEST(FullyShard, GathersAUnitForForwardAndForBackward) {
  for (const bool calls : {true, false}) {
    run_ranks(2, [&](RankContext& self) {
      const auto dp = self.mesh({2}, {"dp_shard"});
      Sharded sharded(dp, calls);
      sharded.model->synchronize_parameters();
      const auto record = [&](const auto& body) {
        dp.group(int64_t{0}).flight_recorder().reset();
        body();
        return calls_of(dp);
      };
      for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(
            record([&] { sharded.loss(self.rank).backward(); }),
            (std::map<std::string, int>{
                {"all_gather", 10}, {"reduce_scatter", 5}}));
        EXPECT_EQ(
            record([&] {
              const auto own_only = sharded.model->no_sync();
              sharded.loss(self.rank).backward();
            }),
            (std::map<std::string, int>{{"all_gather", 10}}));
        EXPECT_EQ(
            record([&] {
              const at::NoGradGuard no_grad;
              sharded.loss(self.rank);
            }),
            (std::map<std::string, int>{{"all_gather", 5}}));
      }
    });
  }
}

/// The units in the order in which they were gathered.
std::vector<std::string> gathers_of(const mesh::DeviceMesh& dp) {
  std::vector<std::string> names;
  for (const auto& entry : dp.group(int64_t{0}).flight_recorder().entries()) {
    if (entry.op == "all_gather") {
      names.push_back(entry.name);
    }
  }
  return names;
}

TEST(FullyShard, ListedUnitsAreGatheredAhead) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    Sharded sharded(dp);
    auto& linears = sharded.module->linears_;
    sharded.model->set_modules_to_forward_prefetch(
        *linears[0], {linears[2].get(), linears[1].get()});
    sharded.model->set_modules_to_forward_prefetch(*linears[2], {});
    sharded.model->set_modules_to_backward_prefetch(
        *linears[4], {linears[2].get(), linears[3].get()});
    Sharded other(dp);
    for (int step = 0; step < 2; ++step) {
      dp.group(int64_t{0}).flight_recorder().reset();
      sharded.loss(self.rank, step).backward();
      EXPECT_EQ(
          gathers_of(dp),
          (std::vector<std::string>{
              "l0", "l2", "l1", "l3", "l4", "l4", "l2", "l3", "l1", "l0"}));
      other.loss(self.rank, step).backward();
    }
    const auto expected = other.whole_gradients();
    const auto found = sharded.whole_gradients();
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
    }
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          sharded.model->set_modules_to_forward_prefetch(
              *linears[0], {sharded.module.get()});
        }),
        HasSubstr("a Chain is not a unit of this model"));
  });
}

TEST(FullyShard, TwoUnitsAreHereAtOnce) {
  for (const bool calls : {true, false}) {
    run_ranks(3, [&](RankContext& self) {
      Sharded sharded(
          self.mesh({3}, {"dp_shard"}),
          calls,
          {},
          {.forward_prefetch = 0,
           .backward_prefetch = BackwardPrefetch::kNone,
           .reduce_in_flight = 0});
      for (int step = 0; step < 3; ++step) {
        sharded.loss(self.rank).backward();
      }
      int64_t largest = 0;
      int64_t sum = 0;
      for (const auto& unit : sharded.model->units()) {
        largest = std::max(largest, unit.unsharded_bytes);
        sum += unit.unsharded_bytes;
      }
      EXPECT_LE(sharded.model->peak_unsharded_bytes(), 2 * largest);
      EXPECT_GT(sum, 2 * largest);
    });
  }
}

TEST(FullyShard, ParametersAndGradientsAreThisRanksRows) {
  run_ranks(4, [](RankContext& self) {
    Sharded sharded(self.mesh({4}, {"dp_shard"}));
    const auto rows_of = [](const at::Tensor& tensor) {
      return dtensor::dtensor_impl(tensor)->local().sizes().vec();
    };
    const auto weight = sharded.module->linears_[0]->weight; // [7, 6]
    EXPECT_EQ(
        rows_of(weight), (std::vector<int64_t>{self.rank < 3 ? 2 : 1, 6}));
    sharded.loss(self.rank).backward();
    EXPECT_EQ(rows_of(weight.grad()), rows_of(weight));
    EXPECT_EQ(dtensor::spec_of(weight.grad()), dtensor::spec_of(weight));
    const auto narrow = sharded.module->linears_[2]->weight; // [1, 5]
    EXPECT_EQ(
        rows_of(narrow.grad()),
        (std::vector<int64_t>{self.rank == 0 ? 1 : 0, 5}));
  });
}

TEST(FullyShard, GradientsOfSeveralBackwardsAreAdded) {
  run_ranks(3, [](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp_shard"});
    const auto gradients = [&](const std::vector<bool>& own_only) {
      Sharded sharded(dp);
      for (size_t i = 0; i < own_only.size(); ++i) {
        const std::unique_ptr<NoSyncGuard> guard(
            own_only[i] ? new NoSyncGuard(sharded.model->no_sync()) : nullptr);
        sharded.loss(self.rank, static_cast<int64_t>(i)).backward();
      }
      return sharded.whole_gradients();
    };
    const auto expected = gradients({false, false, false});
    // Own gradients before, after and between sums.
    for (const auto& own_only : std::vector<std::vector<bool>>{
             {true, true, false}, {false, true, false}, {true, false, false}}) {
      const auto found = gradients(own_only);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-5, 1e-7)) << i;
      }
    }
  });
}

TEST(FullyShard, ZeroGradForgetsWhatWasReducedToo) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    Sharded once(dp);
    once.loss(self.rank).backward();
    const auto expected = once.whole_gradients();
    for (const bool to_none : {true, false}) {
      Sharded sharded(dp);
      sharded.loss(self.rank, 5).backward();
      {
        const auto own_only = sharded.model->no_sync();
        sharded.loss(self.rank, 6).backward();
      }
      const auto loss = sharded.loss(self.rank);
      sharded.module->zero_grad(to_none);
      loss.backward();
      const auto found = sharded.whole_gradients();
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
      }
    }
  });
}

TEST(FullyShard, TwoForwardsBeforeTheirBackwards) {
  for (const bool calls : {true, false}) {
    run_ranks(2, [&](RankContext& self) {
      const auto dp = self.mesh({2}, {"dp_shard"});
      Sharded one(dp, calls);
      one.loss(self.rank, 0).backward();
      one.loss(self.rank, 1).backward();
      Sharded two(dp, calls);
      const auto first = two.loss(self.rank, 0);
      const auto second = two.loss(self.rank, 1);
      {
        const at::NoGradGuard no_grad;
        two.loss(self.rank, 2);
      }
      (first + second).backward();
      const auto expected = one.whole_gradients();
      const auto found = two.whole_gradients();
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-5, 1e-7)) << i;
      }
    });
  }
}

TEST(FullyShard, GradientsOfAnInputAloneReduceNothing) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    Sharded sharded(dp);
    const auto x = rows_of_numbers(0, self.rank).requires_grad_();
    const auto loss = (*sharded.model)(x).pow(2).mean();
    dp.group(int64_t{0}).flight_recorder().reset();
    const auto gradients = torch::autograd::grad({loss}, {x});
    EXPECT_TRUE(gradients[0].defined());
    EXPECT_EQ(calls_of(dp).count("reduce_scatter"), 0);
    EXPECT_FALSE(sharded.gradient(0).defined());
    sharded.loss(self.rank).backward();
    EXPECT_TRUE(sharded.gradient(0).defined());
  });
}

TEST(FullyShard, FrozenParametersHaveNoGradientAndMayBeThawed) {
  run_ranks(2, [](RankContext& self) {
    Sharded sharded(self.mesh({2}, {"dp_shard"}));
    auto& linear = sharded.module->linears_[1];
    linear->weight.set_requires_grad(false);
    sharded.loss(self.rank).backward();
    EXPECT_FALSE(linear->weight.grad().defined());
    EXPECT_TRUE(linear->bias.grad().defined());
    linear->weight.set_requires_grad(true);
    sharded.loss(self.rank).backward();
    sharded.loss(self.rank).backward();
    EXPECT_TRUE(linear->weight.grad().defined());
  });
}

TEST(FullyShard, WhatIsFrozenIsNotSent) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    Sharded sharded(dp);
    sharded.module->linears_[1]->weight.set_requires_grad(false);
    for (auto& parameter : sharded.module->linears_[2]->parameters()) {
      parameter.set_requires_grad(false);
    }
    sharded.model->synchronize_parameters();
    dp.group(int64_t{0}).flight_recorder().reset();
    sharded.loss(self.rank).backward();
    std::map<std::string, int64_t> sent;
    for (const auto& entry : dp.group(int64_t{0}).flight_recorder().entries()) {
      if (entry.op == "reduce_scatter") {
        sent[entry.name] = entry.bytes;
      }
    }
    EXPECT_FALSE(sent.contains("l2"));
    // [5], three rows a rank, and a flag; for each of two ranks.
    EXPECT_EQ(sent.at("l1"), 2 * (3 + 1) * 4);
    EXPECT_GT(sent.at("l0"), sent.at("l1"));
  });
}

/// Two linears, of which forward() uses the one that it is told.
struct Branches : TestModel {
  Branches()
      : a(register_module("a", torch::nn::Linear(6, 6))),
        b(register_module("b", torch::nn::Linear(6, 6))),
        last(register_module("last", torch::nn::Linear(6, 6))) {}

  at::Tensor forward(const at::Tensor& x) override {
    auto h = x;
    if (uses_a) {
      h = dtensor::call(a, h);
    }
    if (uses_b) {
      h = dtensor::call(b, h);
    }
    return dtensor::call(last, h);
  }
  std::vector<torch::nn::Module*> units() override {
    return {a.get(), b.get(), last.get()};
  }

  torch::nn::Linear a, b, last;
  bool uses_a = true;
  bool uses_b = true;
};

struct ShardedBranches {
  explicit ShardedBranches(const mesh::DeviceMesh& dp, bool one_unit = false)
      : module(deferred<Branches>()) {
    if (!one_unit) {
      for (auto* unit : module->units()) {
        fully_shard(*unit, dp);
      }
    }
    model.emplace(std::static_pointer_cast<TestModel>(module), dp);
    dtensor::materialize(*module, 1);
  }
  std::shared_ptr<Branches> module;
  std::optional<Fsdp> model;
};

TEST(FullyShard, UnusedParametersHaveNoGradient) {
  run_ranks(2, [](RankContext& self) {
    ShardedBranches sharded(self.mesh({2}, {"dp_shard"}));
    sharded.module->uses_b = false;
    (*sharded.model)(rows_of_numbers(0, self.rank)).sum().backward();
    EXPECT_TRUE(sharded.module->a->weight.grad().defined());
    EXPECT_FALSE(sharded.module->b->weight.grad().defined());
  });
}

// In one unit ranks may use different parameters.
TEST(FullyShard, WhatOneRankUsedHasItsGradient) {
  run_ranks(2, [](RankContext& self) {
    ShardedBranches sharded(self.mesh({2}, {"dp_shard"}), /*one_unit=*/true);
    sharded.module->uses_a = self.rank == 0;
    sharded.module->uses_b = false;
    (*sharded.model)(rows_of_numbers(0, self.rank)).sum().backward();
    const auto& gradient = sharded.module->a->weight.grad();
    ASSERT_TRUE(gradient.defined());
    EXPECT_GT(dtensor::full_tensor(gradient).abs().sum().item<double>(), 0);
    EXPECT_FALSE(sharded.module->b->weight.grad().defined());
  });
}

TEST(FullyShard, RanksThatUseDifferentUnitsEnd) {
  run_ranks(2, [](RankContext& self) {
    ShardedBranches sharded(self.mesh({2}, {"dp_shard"}));
    sharded.module->uses_a = self.rank == 0;
    sharded.module->uses_b = self.rank == 1;
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>([&] {
          (*sharded.model)(rows_of_numbers(0, self.rank)).sum().backward();
        }),
        AllOf(HasSubstr("\"a\""), HasSubstr("\"b\"")));
  });
}

TEST(FullyShard, AForwardThatThrewCanBeRepeated) {
  struct Throws : TestModel {
    Throws() : a(register_module("a", torch::nn::Linear(6, 6))) {}
    at::Tensor forward(const at::Tensor& x) override {
      const auto y = dtensor::call(a, x);
      if (throws) {
        throw std::runtime_error("a fault of the model");
      }
      return y;
    }
    std::vector<torch::nn::Module*> units() override { return {a.get()}; }
    torch::nn::Linear a;
    bool throws = true;
  };
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    const auto module = deferred<Throws>();
    Fsdp model(std::static_pointer_cast<TestModel>(module), dp);
    dtensor::materialize(*module, 1);
    const auto x = rows_of_numbers(0, self.rank);
    EXPECT_THROW(model(x), std::runtime_error);
    for (const auto& unit : model.units()) {
      EXPECT_FALSE(unit.is_unsharded) << unit.name;
    }
    module->throws = false;
    model(x).sum().backward();
    EXPECT_TRUE(module->a->weight.grad().defined());
  });
}

TEST(FullyShard, AParameterMayBeSetBetweenForwards) {
  run_ranks(3, [](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp_shard"});
    Sharded written(dp);
    Sharded set(dp);
    written.loss(self.rank).backward();
    set.loss(self.rank).backward();
    auto parameters = written.module->parameters();
    auto others = set.module->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::NoGradGuard no_grad;
      parameters[i].mul_(2);
      others[i].set_data(others[i] * 2);
    }
    EXPECT_EQ(
        dtensor::full_tensor(set.loss(self.rank, 1).detach()).item<double>(),
        dtensor::full_tensor(written.loss(self.rank, 1).detach())
            .item<double>());
    set.module->to(at::kDouble);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { set.loss(self.rank); }),
        AllOf(
            HasSubstr("\"l0.weight\" is [S(0)]"),
            HasSubstr("Double"),
            HasSubstr("before its first forward")));
  });
}

TEST(FullyShard, AnOptimizerMayBeMadeBeforeItsUnits) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    const auto module = deferred<Chain>(true);
    torch::optim::AdamW optimizer(module->parameters(), 0.1);
    fully_shard(*module->linears_[0], dp);
    Fsdp model(std::static_pointer_cast<TestModel>(module), dp);
    dtensor::materialize(*module, 1);
    const auto before =
        dtensor::full_tensor(module->linears_[0]->weight.detach()).clone();
    model(rows_of_numbers(0, self.rank)).pow(2).mean().backward();
    optimizer.step();
    EXPECT_FALSE(at::equal(
        dtensor::full_tensor(module->linears_[0]->weight.detach()), before));
  });
}

TEST(FullyShard, OtherMethodsRunInsideAForwardScope) {
  for (const bool calls : {true, false}) {
    run_ranks(2, [&](RankContext& self) {
      const auto dp = self.mesh({2}, {"dp_shard"});
      const auto x = rows_of_numbers(0, self.rank);
      Sharded one(dp, calls);
      (*one.model)(x).pow(2).mean().backward();
      Sharded two(dp, calls);
      at::Tensor loss;
      {
        const ForwardScope scope(*two.model);
        loss = two.module->forward(x).pow(2).mean();
      }
      for (const auto& unit : two.model->units()) {
        EXPECT_FALSE(unit.is_unsharded) << unit.name;
      }
      loss.backward();
      const auto expected = one.whole_gradients();
      const auto found = two.whole_gradients();
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
      }
      EXPECT_THROW(
          {
            const ForwardScope scope(*two.model);
            two.module->forward(x);
            throw std::runtime_error("a fault");
          },
          std::runtime_error);
      EXPECT_FALSE(two.model->units()[0].is_unsharded);
    });
  }
}

TEST(FullyShard, FullParametersAreWholeAndMayBeWrittenTo) {
  run_ranks(3, [](RankContext& self) {
    Sharded sharded(self.mesh({3}, {"dp_shard"}));
    const at::NoGradGuard no_grad;
    auto weight = sharded.module->linears_[0]->weight;
    const auto before = dtensor::full_tensor(weight.detach()).clone();
    {
      const FullParameters whole(*sharded.model);
      EXPECT_TRUE(at::equal(dtensor::dtensor_impl(weight)->local(), before));
    }
    {
      const FullParameters whole(*sharded.model, /*write_back=*/true);
      weight.mul_(2);
    }
    EXPECT_TRUE(at::equal(dtensor::full_tensor(weight.detach()), before * 2));
    EXPECT_THAT(
        message_of_thrown<c10::Error>([&] {
          const FullParameters whole(*sharded.model);
          weight.mul_(2);
        }),
        AllOf(
            HasSubstr("\"l0.weight\" was written to"),
            HasSubstr("FullParameters with write_back")));
    EXPECT_TRUE(at::equal(dtensor::full_tensor(weight.detach()), before * 2));
  });
}

// As with adapters: what is frozen is needed for gradients of inputs alone.
TEST(FullyShard, FrozenUnitsAreGivenAwayInBackward) {
  for (const bool all : {true, false}) {
    run_ranks(2, [&](RankContext& self) {
      Sharded sharded(
          self.mesh({2}, {"dp_shard"}),
          /*calls=*/true,
          {},
          {.forward_prefetch = 0,
           .backward_prefetch = BackwardPrefetch::kNone,
           .reduce_in_flight = 0});
      auto& linears = sharded.module->linears_;
      for (size_t i = 1; i < linears.size(); ++i) {
        linears[i]->weight.set_requires_grad(false);
        linears[i]->bias.set_requires_grad(!all);
      }
      sharded.loss(self.rank).backward();
      EXPECT_TRUE(linears[0]->weight.grad().defined());
      int64_t largest = 0;
      for (const auto& unit : sharded.model->units()) {
        largest = std::max(largest, unit.unsharded_bytes);
      }
      EXPECT_LE(sharded.model->peak_unsharded_bytes(), 2 * largest);
    });
  }
}

TEST(FullyShard, ABackwardAfterOneThatThrewHasItsGradients) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    Sharded one(dp);
    one.loss(self.rank, 1).backward();
    const auto expected = one.whole_gradients();
    Sharded two(dp);
    const auto x = rows_of_numbers(0, self.rank).requires_grad_();
    x.register_hook([](const at::Tensor& gradient) {
      throw std::runtime_error("a fault of a hook");
      return gradient;
    });
    const auto first = (*two.model)(x).pow(2).mean();
    const auto second = two.loss(self.rank, 1);
    EXPECT_THROW(first.backward(), std::runtime_error);
    two.module->zero_grad();
    second.backward();
    const auto found = two.whole_gradients();
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(found[i].defined()) << i;
      EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
    }
  });
}

/// Reads the weights of its linears in other ways than by calling them.
struct Reader : TestModel {
  Reader()
      : a(register_module("a", torch::nn::Linear(6, 6))),
        b(register_module("b", torch::nn::Linear(6, 6))),
        c(register_module("c", torch::nn::Linear(6, 6))) {}

  at::Tensor forward(const at::Tensor& x) override {
    if (concatenates) {
      return at::matmul(x, at::cat({a->weight, b->weight, c->weight}).t());
    }
    const auto first = torch::nn::functional::normalize(
        a->weight, torch::nn::functional::NormalizeFuncOptions().dim(1));
    // A statement each: the compiler chooses the order of a sum's operands, and
    // a local tensor is valid until other units were used.
    const auto y = c(b(at::matmul(x, first.t()))) + a->bias;
    return y + to_local_of(b->bias);
  }
  static at::Tensor to_local_of(const at::Tensor& tensor) {
    return dtensor::is_dtensor(tensor) ? dtensor::to_local(tensor) : tensor;
  }
  std::vector<torch::nn::Module*> units() override {
    return {a.get(), b.get(), c.get()};
  }

  torch::nn::Linear a, b, c;
  bool concatenates = false;
};

TEST(FullyShard, AnyOpThatReadsAParameterGathersIt) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    const auto whole = deferred<Reader>();
    dtensor::materialize(*whole, 1);
    const auto sharded = deferred<Reader>();
    for (auto* unit : sharded->units()) {
      fully_shard(*unit, dp);
    }
    Fsdp model(std::static_pointer_cast<TestModel>(sharded), dp);
    dtensor::materialize(*sharded, 1);
    const auto x = rows_of_numbers(0, self.rank);
    const auto expected = whole->forward(x);
    const auto found = model(x);
    EXPECT_TRUE(at::equal(
        dtensor::full_tensor(found.detach()),
        dtensor::full_tensor(expected.detach())));
    found.sum().backward();
    {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(
          dtensor::full_tensor(model(x)),
          dtensor::full_tensor(expected.detach())));
    }
    sharded->concatenates = true;
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { model(x); }),
        HasSubstr("parameters of three or more sharded units"));
  });
}

TEST(FullyShard, WhatIsSetInsideFullParametersIsWrittenBack) {
  run_ranks(3, [](RankContext& self) {
    Sharded sharded(self.mesh({3}, {"dp_shard"}));
    const at::NoGradGuard no_grad;
    auto weight = sharded.module->linears_[0]->weight;
    const auto before = dtensor::full_tensor(weight.detach()).clone();
    {
      const FullParameters whole(*sharded.model, /*write_back=*/true);
      weight.set_data(weight * 3);
      EXPECT_EQ(sharded.model->state_dict().size(), 10);
    }
    EXPECT_TRUE(at::equal(dtensor::full_tensor(weight.detach()), before * 3));
    EXPECT_THAT(
        message_of_thrown<c10::Error>([&] {
          const FullParameters whole(*sharded.model);
          weight.set_data(weight * 2);
        }),
        HasSubstr("\"l0.weight\" was written to"));
  });
}

TEST(FullyShard, AUnitIsGatheredByHand) {
  run_ranks(2, [](RankContext& self) {
    Sharded sharded(self.mesh({2}, {"dp_shard"}));
    auto& linear = *sharded.module->linears_[0];
    const auto whole = dtensor::full_tensor(linear.weight.detach()).clone();
    sharded.model->unshard(linear);
    EXPECT_TRUE(
        at::equal(dtensor::dtensor_impl(linear.weight)->local(), whole));
    sharded.model->reshard(linear);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { sharded.model->unshard(*sharded.module); }),
        HasSubstr("a Chain is not a unit of this model"));
  });
}

// What is refused, on all ranks and before anything is sent.

std::string refusal(const std::function<void(const mesh::DeviceMesh&)>& body) {
  const auto world = mesh::World::fake(0, 2);
  const auto dp = mesh::DeviceMesh::create(world, {2}, {"dp_shard"});
  return message_of_thrown<c10::ValueError>([&] { body(dp); });
}

TEST(FullyShardRefuses, ParametersThatCannotBeSharded) {
  EXPECT_THAT(
      refusal([](const auto& dp) {
        Chain plain(false);
        fully_shard(*plain.linears_[0], dp);
      }),
      AllOf(
          HasSubstr("\"weight\" is a plain tensor"),
          HasSubstr("inside weft::dtensor::DeferredInit")));
  EXPECT_THAT(
      refusal([](const auto& dp) {
        const auto module = deferred<Chain>(false);
        dtensor::materialize(*module, 1);
        fully_shard(*module, dp);
      }),
      HasSubstr("\"l0.weight\" already has values"));
}

TEST(FullyShardRefuses, UnitsThatOverlap) {
  EXPECT_THAT(
      refusal([](const auto& dp) {
        const auto module = deferred<Chain>(false);
        fully_shard(*module, dp);
        fully_shard(*module, dp);
      }),
      HasSubstr("a Chain is already a unit"));
  EXPECT_THAT(
      refusal([](const auto& dp) {
        const auto module = deferred<Chain>(false);
        fully_shard(*module, dp);
        fully_shard(*module->linears_[0], dp);
      }),
      AllOf(
          HasSubstr("\"weight\" of a Linear is already in another unit, as "
                    "\"l0.weight\" of a Chain"),
          HasSubstr("inner modules first")));
  EXPECT_THAT(
      refusal([](const auto& dp) {
        const auto module = deferred<Chain>(false);
        auto& first = *module->linears_[0];
        struct Head : torch::nn::Module {
          explicit Head(const at::Tensor& tied) {
            register_parameter("tied", tied);
          }
        };
        Head head(first.weight);
        fully_shard(first, dp);
        fully_shard(head, dp);
      }),
      AllOf(
          HasSubstr("\"tied\" of a Head"),
          HasSubstr("as \"weight\" of a Linear"),
          HasSubstr("fully_shard({&first, &second}, mesh)")));
  EXPECT_THAT(
      refusal([](const auto& dp) {
        const auto module = deferred<Chain>(false);
        const dtensor::DeferredInit scope;
        torch::nn::Linear other(6, 7);
        other->weight =
            other->register_parameter("tied", module->linears_[0]->weight);
        fully_shard(*module->linears_[0], dp);
        fully_shard(*other, dp);
      }),
      HasSubstr("\"tied\" of a Linear is already in another unit, as "
                "\"weight\" of a Linear"));
  EXPECT_THAT(
      refusal([](const auto& dp) {
        const dtensor::DeferredInit scope;
        struct Head : torch::nn::Module {
          explicit Head(const at::Tensor& tied) {
            register_parameter("tied", tied);
          }
        };
        const auto tied = torch::randn({6, 7});
        Head first(tied);
        Head second(tied);
        fully_shard(first, dp);
        fully_shard(second, dp);
      }),
      HasSubstr("\"tied\" of a Head is already in another unit, as that of "
                "another such module"));
  EXPECT_THAT(
      refusal([](const auto& dp) {
        const auto module = deferred<Chain>(false);
        dtensor::set_placements(
            module->linears_[0]->weight, dp, {dtensor::Shard(0)});
        fully_shard(*module->linears_[0], dp);
      }),
      AllOf(
          HasSubstr("\"weight\" is [S(0)] on dp_shard=2 already"),
          HasSubstr("other mesh dims than \"dp_shard\"")));
  EXPECT_THAT(
      refusal([](const auto& dp) {
        const auto module = deferred<Chain>(false);
        for (auto* unit : module->units()) {
          fully_shard(*unit, dp);
        }
        fully_shard(*module, dp);
      }),
      HasSubstr("no parameters besides those of the units inside it"));
}

TEST(FullyShardRefuses, ModelsThatAreNotReady) {
  EXPECT_THAT(
      refusal([](const auto& dp) {
        const auto module = deferred<Chain>(false);
        Fsdp model(std::static_pointer_cast<TestModel>(module), dp);
        model(rows_of_numbers(0, 0));
      }),
      AllOf(HasSubstr("l0.weight has no values"), HasSubstr("materialize")));
  EXPECT_THAT(
      refusal([](const auto& dp) {
        Sharded sharded(dp);
        sharded.model->synchronize_parameters();
        sharded.module->linears_[0]->forward(rows_of_numbers(0, 0));
      }),
      AllOf(
          HasSubstr("\"l0.weight\" of unit l0 is used outside"),
          HasSubstr("Call the model")));
}

TEST(FullyShardRefuses, GradientsWithAGraph) {
  run_ranks(2, [](RankContext& self) {
    Sharded sharded(self.mesh({2}, {"dp_shard"}));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          sharded.loss(self.rank).backward(
              {}, /*retain_graph=*/true, /*create_graph=*/true);
        }),
        HasSubstr("requires grad itself"));
    sharded.module->zero_grad();
    sharded.loss(self.rank).backward();
    EXPECT_TRUE(sharded.gradient(0).defined());
  });
}

TEST(FullyShardRefuses, RanksWithOtherUnits) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    const auto module = deferred<Chain>(true);
    if (self.rank == 0) {
      fully_shard(*module->linears_[0], dp);
    }
    Fsdp model(std::static_pointer_cast<TestModel>(module), dp);
    dtensor::materialize(*module, 1);
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>(
            [&] { model(rows_of_numbers(0, self.rank)); }),
        HasSubstr("the list of units differs between ranks"));
  });
}

// Outputs are DTensors on no mesh, whose data is at hand as a plain tensor's.
TEST(FullyShardOutputs, AreReadAsPlainTensors) {
  run_ranks(2, [](RankContext& self) {
    Sharded sharded(self.mesh({2}, {"dp_shard"}));
    const auto output = (*sharded.model)(rows_of_numbers(0, self.rank));
    const auto plain = dtensor::to_local(output).detach().clone();
    EXPECT_TRUE(at::equal(output, plain));
    EXPECT_TRUE(at::equal(plain, output));
    EXPECT_FALSE(at::equal(output, plain + 1));
    EXPECT_EQ(
        output.const_data_ptr(), dtensor::to_local(output).const_data_ptr());
    EXPECT_EQ(output.data_ptr<float>()[4], plain.data_ptr<float>()[4]);
    const auto rows = output.accessor<float, 2>();
    EXPECT_EQ(rows[1][2], plain[1][2].item<float>());
    // What is computed of it, and views of it, too.
    const auto column = output.detach().t().select(0, 1);
    EXPECT_EQ((column.accessor<float, 1>()[2]), plain[2][1].item<float>());
    const auto best = at::softmax(output, 1).argmax(1);
    EXPECT_EQ(
        best.cpu().contiguous().data_ptr<int64_t>()[0],
        plain[0].argmax().item<int64_t>());
    std::stringstream file;
    torch::save(output, file);
    torch::save(best, file);
    at::Tensor loaded;
    torch::load(loaded, file);
    EXPECT_FALSE(dtensor::is_dtensor(loaded));
    EXPECT_TRUE(at::equal(loaded, plain));
    // Parameters have no data between their uses.
    output.sum().backward();
    EXPECT_THROW(
        sharded.module->linears_[0]->weight.data_ptr<float>(), c10::Error);
  });
}

// The gradient penalty of Gulrajani et al. (2017), with a step after it.
TEST(FullyShard, SecondDerivativesEqualThoseOfOneRank) {
  const auto penalty = [](const at::Tensor& y, const at::Tensor& x) {
    const auto loss = y.pow(2).sum();
    const auto slope = torch::autograd::grad(
        {loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    return loss + (slope.norm() - 1).pow(2);
  };
  for (const auto& each : model_cases()) {
    if (each.name == "Transformer") {
      continue; // Its inputs are tokens.
    }
    const auto input = [&](int64_t step, int64_t rank) {
      return each.input(step, rank).clone().requires_grad_();
    };
    for (const int64_t ranks : {1, 2, 3}) {
      for (const bool reshards : {true, false}) {
        SCOPED_TRACE(
            each.name + " on " + std::to_string(ranks) + " ranks, reshards " +
            std::to_string(int{reshards}));
        run_ranks(static_cast<int>(ranks), [&](RankContext& self) {
          const auto alone = each.make_deferred();
          dtensor::materialize(*alone, 1);
          auto alone_optimizer = adamw(*alone);
          const auto module = each.make_deferred();
          const auto model = shard(
              module,
              self.mesh({ranks}, {"dp_shard"}),
              {.reshard_after_forward = reshards});
          auto optimizer = adamw(*module);
          for (int64_t step = 0; step < 3; ++step) {
            for (int64_t rank = 0; rank < ranks; ++rank) {
              const auto x = input(step, rank);
              (penalty(alone->forward(x), x) / static_cast<double>(ranks))
                  .backward();
            }
            alone_optimizer.step();
            alone_optimizer.zero_grad();
            const auto x = input(step, self.rank);
            penalty((*model)(x), x).backward();
            optimizer.step();
            optimizer.zero_grad();
          }
          expect_close(whole_weights(*module), whole_weights(*alone));
        });
      }
    }
  }
}

} // namespace
} // namespace weft::fsdp
