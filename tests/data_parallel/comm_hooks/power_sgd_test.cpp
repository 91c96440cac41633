// PowerSGD by itself, on buckets made by hand. Numbers of PyTorch's hook are in
// oracle/comm_hooks.json: it draws the same random matrices from the same seed.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "data_parallel/comm_hooks/default_hooks.h"
#include "data_parallel/comm_hooks/orthogonalize.h"
#include "data_parallel/comm_hooks/power_sgd_hook.h"
#include "tests/ddp/models.h"
#include "tests/ddp/oracle/oracle.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::data_parallel {
namespace {

using test::chirp;
using test::difference;
using test::make_bucket;
using test::message_of_thrown;
using test::numel_of;
using test::RankContext;
using test::reduce;
using test::reduce_iteration;
using test::run_ranks;
using test::Shapes;
using test::stored_output;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct PowerSgdCase {
  std::string name;
  PowerSGDOptions options;
  bool is_batched = false;
  at::ScalarType dtype = at::kDouble;
};

PowerSGDOptions
of_rank(int64_t rank, double min_compression_rate, double epsilon = 0) {
  return {
      .matrix_approximation_rank = rank,
      .start_powerSGD_iter = 2,
      .min_compression_rate = min_compression_rate,
      .orthogonalization_epsilon = epsilon};
}

/// The options of comm_hooks.py.
std::vector<PowerSgdCase> stored_cases() {
  auto cold = of_rank(1, 2);
  cold.warm_start = false;
  cold.random_seed = 7;
  auto no_feedback = of_rank(1, 2, 1e-3);
  no_feedback.use_error_feedback = false;
  auto batched = of_rank(1, 2);
  batched.batch_tensors_with_same_shape = true;
  return {
      {"powerSGD_hook rank_1", of_rank(1, 2)},
      {"powerSGD_hook rank_2", of_rank(2, 1)},
      {"powerSGD_hook rank_3", of_rank(3, 1)},
      {"powerSGD_hook cold_start", cold},
      {"powerSGD_hook no_error_feedback", no_feedback},
      {"powerSGD_hook batch_same_shape", batched},
      {"batched_powerSGD_hook rank_1", of_rank(1, 2), true},
      {"batched_powerSGD_hook rank_3", of_rank(3, 1), true},
      {"powerSGD_hook float32", of_rank(1, 2), false, at::kFloat}};
}

std::shared_ptr<PowerSGDHook> make_hook(const PowerSgdCase& options) {
  if (options.is_batched) {
    return std::make_shared<BatchedPowerSGDHook>(options.options);
  }
  return std::make_shared<PowerSGDHook>(options.options);
}

/// Compresses from the first bucket on.
PowerSGDOptions at_once(int64_t rank, double min_compression_rate) {
  auto options = of_rank(rank, min_compression_rate);
  options.start_powerSGD_iter = 0;
  options.use_error_feedback = false;
  options.warm_start = false;
  return options;
}

/// The mean over the ranks of what `of_rank` gives for each.
template <class OfRank>
at::Tensor mean_over_ranks(int64_t world_size, const OfRank& of_rank) {
  auto sum = of_rank(0);
  for (int64_t rank = 1; rank < world_size; ++rank) {
    sum = sum + of_rank(rank);
  }
  return sum / world_size;
}

void expect_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    double tolerance) {
  EXPECT_LE(
      (actual.to(at::kDouble) - expected.to(at::kDouble))
          .abs()
          .max()
          .item<double>(),
      tolerance);
}

class PowerSgd : public ::testing::TestWithParam<int> {};

TEST_P(PowerSgd, GivesWhatPyTorchsDoes) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto group = self.mesh({self.world_size}, {"dp"}).group("dp");
    for (const auto& each : stored_cases()) {
      const auto stored = stored_output(self.world_size, each.name, self.rank);
      const auto hook = make_hook(each);
      for (int64_t iteration = 0; iteration < 6; ++iteration) {
        const auto results =
            reduce_iteration(*hook, iteration, group, each.dtype);
        const auto key = std::to_string(iteration);
        for (size_t i = 0; stored.contains(key) && i < results.size(); ++i) {
          EXPECT_LE(
              difference(results[i], stored[key][i]),
              each.dtype == at::kDouble ? 1e-11 : 1e-5)
              << each.name << " iteration " << key << " bucket " << i;
        }
      }
      const auto stats = hook->compression_stats();
      EXPECT_EQ(stats.numel_before_compression, stored["stats"][0]);
      EXPECT_EQ(stats.numel_after_compression, stored["stats"][1]);
      const auto size = static_cast<int64_t>(c10::elementSize(each.dtype));
      EXPECT_EQ(
          stats.bytes_before_compression,
          stats.numel_before_compression * size);
      EXPECT_EQ(
          stats.bytes_after_compression, stats.numel_after_compression * size);
      EXPECT_DOUBLE_EQ(
          stats.compress_rate,
          stored["stats"][0].get<double>() / stored["stats"][1].get<double>());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    PowerSgd,
    ::testing::Values(2, 3),
    ::testing::PrintToStringParamName());

class PowerSgdAnywhere : public PowerSgd {};

TEST_P(PowerSgdAnywhere, IsExactOnceTheRankSuffices) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto group = self.mesh({n}, {"dp"}).group("dp");
    const auto full = [](int64_t rank) {
      return chirp({6, 40}, 0.2 + static_cast<double>(rank), at::kDouble);
    };
    // Of rank one on each rank, in one column space.
    const auto thin = [](int64_t rank) {
      return at::outer(
          chirp({6}, 0.4, at::kDouble),
          chirp({40}, 0.9 * static_cast<double>(rank), at::kDouble));
    };
    const auto run = [&](const at::Tensor& own, int64_t rank) {
      PowerSGDHook hook(at_once(rank, 0.5));
      return reduce(
          hook, make_bucket(own.reshape({-1}).clone(), {{6, 40}}, group));
    };
    expect_close(
        run(full(self.rank), 6), mean_over_ranks(n, full).view({-1}), 1e-12);
    expect_close(
        run(thin(self.rank), 1), mean_over_ranks(n, thin).view({-1}), 1e-12);
    if (n > 1) {
      EXPECT_GE(
          (run(full(self.rank), 1) - mean_over_ranks(n, full).view({-1}))
              .abs()
              .max()
              .item<double>(),
          1e-2);
    }
  });
}

TEST_P(PowerSgdAnywhere, FeedsBackWhatWasLost) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto group = self.mesh({n}, {"dp"}).group("dp");
    const Shapes shapes{{12, 10}, {7}};
    PowerSGDHook hook(of_rank(1, 2));
    auto reduced = at::zeros({127}, at::kDouble);
    auto exact = at::zeros({127}, at::kDouble);
    for (int64_t step = 0; step < 12; ++step) {
      const auto of_rank = [&](int64_t rank) {
        return chirp(
            {127}, 0.3 * static_cast<double>(step + 5 * rank), at::kDouble);
      };
      exact += mean_over_ranks(n, of_rank);
      reduced += reduce(hook, make_bucket(of_rank(self.rank), shapes, group));
    }
    EXPECT_FALSE(at::allclose(reduced, exact, 0, 1e-3));
    auto lost = hook.state_dict().at("error.0").clone();
    mesh::Communicator(group).all_reduce(lost).wait();
    expect_close(reduced + lost / n, exact, 1e-11);
    // Nothing is lost of what is not compressed.
    EXPECT_EQ(lost.narrow(0, 120, 7).abs().max().item<double>(), 0);
  });
}

TEST_P(PowerSgdAnywhere, IsTheSameOnAllRanksToTheBit) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto group = self.mesh({self.world_size}, {"dp"}).group("dp");
    for (const auto& each : stored_cases()) {
      const auto hook = make_hook(each);
      for (int64_t iteration = 0; iteration < 4; ++iteration) {
        for (const auto& result :
             reduce_iteration(*hook, iteration, group, at::kFloat)) {
          const auto first = result.clone();
          mesh::Communicator(group).broadcast(first, 0).wait();
          EXPECT_TRUE(at::equal(first, result)) << each.name;
        }
      }
    }
  });
}

TEST_P(PowerSgdAnywhere, ResumesToTheBit) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto group = self.mesh({self.world_size}, {"dp"}).group("dp");
    for (const auto& each : stored_cases()) {
      for (const int64_t saved_after : {1, 4}) {
        const auto hook = make_hook(each);
        for (int64_t iteration = 0; iteration < saved_after; ++iteration) {
          reduce_iteration(*hook, iteration, group, at::kFloat);
        }
        const auto state = hook->state_dict();
        // The seed is part of the state.
        auto fresh = each;
        fresh.options.random_seed = 1234;
        const auto resumed = make_hook(fresh);
        std::map<std::string, at::Tensor> copies;
        for (const auto& [key, tensor] : state) {
          copies[key] = tensor.clone();
        }
        for (int64_t iteration = saved_after; iteration < 7; ++iteration) {
          const auto expected =
              reduce_iteration(*hook, iteration, group, at::kFloat);
          if (iteration == saved_after) {
            // Steps since then have not changed what was saved.
            for (const auto& [key, tensor] : state) {
              EXPECT_TRUE(at::equal(tensor, copies[key])) << key;
            }
            resumed->load_state_dict(state);
          }
          const auto results =
              reduce_iteration(*resumed, iteration, group, at::kFloat);
          for (size_t i = 0; i < results.size(); ++i) {
            EXPECT_TRUE(at::equal(results[i], expected[i]))
                << each.name << " iteration " << iteration;
          }
        }
        EXPECT_EQ(
            resumed->compression_stats().bytes_after_compression,
            hook->compression_stats().bytes_after_compression);
      }
    }
  });
}

TEST_P(PowerSgdAnywhere, SurvivesGradientsThatAreZeroOrNotFinite) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto group = self.mesh({self.world_size}, {"dp"}).group("dp");
    for (const bool is_batched : {false, true}) {
      for (const int64_t rank : {1, 2, 3}) {
        for (const double value : {0.0, double(NAN), double(INFINITY)}) {
          auto options = of_rank(rank, 1);
          options.use_error_feedback = value != 0.0;
          const auto hook = make_hook({"", options, is_batched});
          const auto run = [&](const at::Tensor& values) {
            return reduce(*hook, make_bucket(values, {{20, 20}}, group));
          };
          for (int step = 0; step < 2; ++step) {
            run(at::ones({400}));
          }
          const auto bad = run(at::full({400}, value));
          EXPECT_EQ(bad.isfinite().all().item<bool>(), value == 0.0);
          if (value == 0.0) {
            expect_close(bad, at::zeros({400}), 0);
          }
          at::Tensor result;
          for (int step = 0; step < 2; ++step) {
            result = run(at::ones({400}));
          }
          SCOPED_TRACE(
              ::testing::Message() << "rank " << rank << ", after " << value
                                   << (is_batched ? ", batched" : ""));
          expect_close(result, at::ones({400}), 1e-4);
        }
      }
    }
  });
}

TEST_P(PowerSgdAnywhere, TakesGradientsOfAnyShape) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto group = self.mesh({n}, {"dp"}).group("dp");
    for (const bool same_shape : {false, true}) {
      auto options = at_once(4, 1e-3);
      options.batch_tensors_with_same_shape = same_shape;
      PowerSGDHook hook(options);
      // Of rank four at most, so exact.
      const Shapes shapes{
          {},
          {4, 9},
          {0, 5},
          {3},
          {9, 4},
          {4, 9},
          {2, 3, 2, 2},
          {4, 9},
          {1, 1}};
      const auto of_rank = [&](int64_t rank) {
        return chirp(
            {numel_of(shapes)}, static_cast<double>(rank), at::kDouble);
      };
      auto bucket = make_bucket(of_rank(self.rank), shapes, group);
      // As gradients lie whose parameters are transposed.
      bucket.gradients[5] = bucket.gradients[5].as_strided({4, 9}, {1, 4});
      bucket.gradients[6] =
          bucket.gradients[6].as_strided({2, 3, 2, 2}, {12, 1, 6, 3});
      expect_close(reduce(hook, bucket), mean_over_ranks(n, of_rank), 1e-12);
    }
    PowerSGDHook hook(at_once(1, 2));
    reduce(hook, make_bucket(at::empty({0}), {{0, 5}}, group));
    BatchedPowerSGDHook batched(at_once(1, 2));
    reduce(batched, make_bucket(at::empty({0}), {{0, 5}}, group));
    EXPECT_EQ(
        reduce(batched, make_bucket(at::ones({1}), {{1}}, group)).item<float>(),
        1.0F);
  });
}

TEST_P(PowerSgdAnywhere, ComputesHalvesInFullPrecision) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto group = self.mesh({n}, {"dp"}).group("dp");
    for (const auto dtype : {at::kHalf, at::kBFloat16}) {
      for (const bool is_batched : {false, true}) {
        const auto values_of = [&](int64_t rank) {
          return chirp({240}, 0.2 + static_cast<double>(rank), dtype);
        };
        const auto exact = mean_over_ranks(
            n, [&](int64_t rank) { return values_of(rank).to(at::kDouble); });
        // Rank enough: only what is sent and the result are rounded.
        const auto options = of_rank(16, 0.1);
        const auto hook = make_hook({"", options, is_batched});
        group.flight_recorder().reset();
        at::Tensor result;
        for (int step = 0; step < 3; ++step) {
          result = reduce(
              *hook, make_bucket(values_of(self.rank), {{6, 40}}, group));
        }
        expect_close(
            result, exact, 4 * std::ldexp(1, dtype == at::kHalf ? -11 : -8));
        for (const auto& entry : group.flight_recorder().entries()) {
          EXPECT_EQ(entry.dtype, dtype);
        }
        EXPECT_EQ(hook->state_dict().at("error.0").scalar_type(), at::kFloat);
        EXPECT_EQ(hook->state_dict().at("q.0").scalar_type(), at::kFloat);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    PowerSgdAnywhere,
    ::testing::Values(1, 2, 3),
    ::testing::PrintToStringParamName());

TEST(PowerSgdOfTwo, SendsTwoSmallMessagesABucket) {
  run_ranks(2, [](RankContext& self) {
    const auto group = self.mesh({2}, {"dp"}).group("dp");
    const auto bytes = [&](const std::shared_ptr<CommHook>& hook) {
      group.flight_recorder().reset();
      reduce(*hook, make_bucket(at::ones({4128}), {{64, 64}, {32}}, group));
      return group.flight_recorder().total_bytes();
    };
    const auto hook = std::make_shared<PowerSGDHook>(at_once(2, 2));
    EXPECT_EQ(bytes(hook), 4 * (32 + 2 * 128));
    const auto entries = group.flight_recorder().entries();
    ASSERT_EQ(entries.size(), 2);
    EXPECT_EQ(entries[0].name, "ddp bucket 0 plain and p");
    EXPECT_EQ(entries[1].name, "ddp bucket 0 q");
    const auto stats = hook->compression_stats();
    EXPECT_EQ(stats.bytes_before_compression, 4 * 4128);
    EXPECT_EQ(stats.bytes_after_compression, 4 * (32 + 2 * 128));
    EXPECT_EQ(
        bytes(bf16_compress_wrapper(
            std::make_shared<PowerSGDHook>(at_once(2, 2)))),
        2 * (32 + 2 * 128));
    // A side of 65, as 64 * 64 < 4128.
    EXPECT_EQ(
        bytes(std::make_shared<BatchedPowerSGDHook>(at_once(1, 2))),
        4 * 2 * 65);
  });
}

TEST(PowerSgdOfTwo, StartsAtItsIterationAndForgetsBucketsThatAreRebuilt) {
  run_ranks(2, [](RankContext& self) {
    const auto group = self.mesh({2}, {"dp"}).group("dp");
    PowerSGDHook hook(of_rank(1, 2));
    EXPECT_EQ(hook.name(), "powerSGD_hook");
    EXPECT_EQ(BatchedPowerSGDHook().name(), "batched_powerSGD_hook");
    EXPECT_TRUE(hook.divides());
    EXPECT_FALSE(hook.can_be_tried());
    const auto keys = [&] {
      std::vector<std::string> names;
      for (const auto& [key, tensor] : hook.state_dict()) {
        names.push_back(key);
      }
      return names;
    };
    reduce_iteration(hook, 0, group, at::kFloat);
    reduce_iteration(hook, 1, group, at::kFloat);
    EXPECT_EQ(hook.compression_stats().compress_rate, 0);
    EXPECT_THAT(
        keys(), ::testing::ElementsAre("compression_stats", "iter", "rng"));
    reduce_iteration(hook, 2, group, at::kFloat);
    EXPECT_GT(hook.compression_stats().compress_rate, 2);
    EXPECT_THAT(
        keys(),
        ::testing::ElementsAre(
            "compression_stats",
            "error.0",
            "error.1",
            "iter",
            "q.0",
            "q.1",
            "rng"));
    hook.on_rebuilt_buckets();
    EXPECT_EQ(keys().size(), 3);
    // Other buckets than before are fine now.
    reduce(hook, make_bucket(at::ones({400}), {{20, 20}}, group));
    EXPECT_EQ(hook.state_dict().at("error.0").numel(), 400);
  });
}

TEST(PowerSgdOfTwo, WrappersPassItsStateOn) {
  run_ranks(2, [](RankContext& self) {
    const auto group = self.mesh({2}, {"dp"}).group("dp");
    const auto make = [] {
      return fp16_compress_wrapper(
          std::make_shared<PowerSGDHook>(of_rank(1, 2)));
    };
    const auto hook = make();
    EXPECT_EQ(hook->name(), "fp16_compress_wrapper(powerSGD_hook)");
    EXPECT_FALSE(hook->can_be_tried());
    for (int64_t iteration = 0; iteration < 4; ++iteration) {
      reduce_iteration(*hook, iteration, group, at::kFloat);
    }
    const auto resumed = make();
    resumed->load_state_dict(hook->state_dict());
    const auto expected = reduce_iteration(*hook, 4, group, at::kFloat);
    const auto results = reduce_iteration(*resumed, 4, group, at::kFloat);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(at::equal(results[i], expected[i]));
    }
    hook->on_rebuilt_buckets();
    EXPECT_EQ(hook->state_dict().count("q.0"), 0);
  });
}

TEST(PowerSgdErrors, NameTheOptionThatIsOutOfRange) {
  const auto message = [](const auto& change) {
    PowerSGDOptions options;
    change(options);
    const auto plain =
        message_of_thrown<c10::ValueError>([&] { PowerSGDHook hook(options); });
    const auto batched = message_of_thrown<c10::ValueError>(
        [&] { BatchedPowerSGDHook hook(options); });
    EXPECT_THAT(plain, HasSubstr("[powerSGD_hook]"));
    EXPECT_THAT(batched, HasSubstr("[batched_powerSGD_hook]"));
    return plain;
  };
  EXPECT_THAT(
      message([](auto& options) { options.matrix_approximation_rank = 0; }),
      HasSubstr("matrix_approximation_rank: got 0, expected at least 1"));
  for (const bool warm_start : {false, true}) {
    EXPECT_THAT(
        message([&](auto& options) {
          options.start_powerSGD_iter = 1;
          options.warm_start = warm_start;
          options.use_error_feedback = !warm_start;
        }),
        AllOf(
            HasSubstr("start_powerSGD_iter: got 1, expected at least 2"),
            HasSubstr("use_error_feedback or warm_start")));
  }
  EXPECT_THAT(
      message([](auto& options) {
        options.start_powerSGD_iter = -1;
        options.warm_start = false;
        options.use_error_feedback = false;
      }),
      HasSubstr("start_powerSGD_iter: got -1, expected at least 0"));
  for (const double rate : {0.0, -2.0, double(NAN), double(INFINITY)}) {
    EXPECT_THAT(
        message([&](auto& options) { options.min_compression_rate = rate; }),
        HasSubstr("expected a positive min_compression_rate"));
  }
  for (const double epsilon : {-1e-8, double(NAN), double(INFINITY)}) {
    EXPECT_THAT(
        message([&](auto& options) {
          options.orthogonalization_epsilon = epsilon;
        }),
        HasSubstr("expected a non-negative orthogonalization_epsilon"));
  }
  EXPECT_THAT(
      message([](auto& options) {
        options.compression_stats_logging_frequency = 0;
      }),
      HasSubstr(
          "compression_stats_logging_frequency: got 0, expected at least 1"));
}

TEST(PowerSgdErrors, NameTheEntryOfAStateThatDoesNotFit) {
  PowerSGDHook hook(of_rank(1, 2));
  const auto message = [&](const auto& change) {
    auto state = hook.state_dict();
    change(state);
    return message_of_thrown<c10::ValueError>(
        [&] { hook.load_state_dict(state); });
  };
  for (const char* key : {"iter", "rng", "compression_stats"}) {
    EXPECT_THAT(
        message([&](auto& state) { state.erase(key); }),
        HasSubstr("no entry \"" + std::string(key) + "\""));
    EXPECT_THAT(
        message([&](auto& state) { state[key] = at::zeros({7}); }),
        HasSubstr("the entry \"" + std::string(key) + "\""));
  }
  EXPECT_THAT(
      message([](auto& state) {
        state["rng"] = at::tensor({-1, 0}, at::kLong);
      }),
      HasSubstr("\"rng\" of the hook's state must hold a 32-bit seed"));
  for (const char* key : {"other", "q.", "q.x", "error.1b", "error.-1"}) {
    EXPECT_THAT(
        message([&](auto& state) { state[key] = at::zeros({7}); }),
        AllOf(
            HasSubstr("does not use the entry \"" + std::string(key) + "\""),
            HasSubstr("comm hook powerSGD_hook")));
  }
  EXPECT_THAT(
      message([](auto& state) { state["q.0"] = at::zeros({7}, at::kLong); }),
      HasSubstr(
          "\"q.0\" of the hook's state must be a 1-d floating-point tensor"));
  EXPECT_THAT(
      message([](auto& state) {
        state["error.3"] = at::zeros({7, 2});
      }),
      HasSubstr("\"error.3\" of the hook's state must be a 1-d floating-point "
                "tensor"));
}

TEST(PowerSgdErrors, NameTheBucketThatTheStateDoesNotFit) {
  run_ranks(1, [](RankContext& self) {
    const auto group = self.mesh({1}, {"dp"}).group("dp");
    for (const char* key : {"error.0", "q.0"}) {
      PowerSGDHook hook(of_rank(1, 2));
      auto state = hook.state_dict();
      state["iter"] = at::full({1}, 2, at::kLong);
      state[key] = at::zeros({7});
      hook.load_state_dict(state);
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>([&] {
            hook.run(make_bucket(at::ones({400}), {{20, 20}}, group));
          }),
          AllOf(
              HasSubstr("\"" + std::string(key) + "\" has 7 elements"),
              HasSubstr("this bucket needs"),
              HasSubstr("layer.0")));
    }
    PowerSGDHook hook(of_rank(1, 2));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          const auto buffer = at::zeros({4}, at::kComplexDouble);
          hook.run(make_bucket(buffer, {{2, 2}}, group));
        }),
        AllOf(HasSubstr("[powerSGD_hook]"), HasSubstr("ComplexDouble")));
  });
}

TEST(Orthogonalize, MakesColumnsOrthonormalAndLeavesZerosAlone) {
  for (const int64_t rank : {1, 2, 3, 5}) {
    const auto matrices = chirp({2, 7, rank}, 0.3, at::kDouble);
    orthogonalize(matrices, 0);
    const auto products = at::bmm(matrices.transpose(1, 2), matrices);
    expect_close(
        products, at::eye(rank, at::kDouble).expand_as(products), 1e-12);
    const auto zeros = at::zeros({2, 7, rank}, at::kFloat);
    orthogonalize(zeros, 0);
    EXPECT_TRUE(zeros.isfinite().all().item<bool>());
    if (rank <= 2) {
      EXPECT_EQ(zeros.abs().max().item<float>(), 0);
    }
  }
  // Columns that are parallel count once.
  const auto parallel = at::ones({1, 20, 2});
  parallel.select(2, 1).mul_(1e-3);
  orthogonalize(parallel, 0);
  expect_close(
      parallel.select(2, 0), at::full({1, 20}, std::sqrt(1.0 / 20)), 1e-6);
  EXPECT_LE(
      at::bmm(parallel.transpose(1, 2), parallel)[0][0][1].abs().item<double>(),
      1e-6);
  const auto damped = at::full({1, 4, 1}, 0.5);
  orthogonalize(damped, 1);
  expect_close(damped, at::full({1, 4, 1}, 0.25), 1e-7);
}

} // namespace
} // namespace weft::data_parallel
