// Random ops on DTensors draw the same numbers on every mesh.

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/random/random_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::fake_line;
using dtensor::test::fake_mesh;
using dtensor::test::random;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;
using Function = std::function<at::Tensor(const at::Tensor&)>;
using Functions = std::vector<std::pair<std::string, Function>>;

// In place on a copy, since the same input serves all of them.
Function in_place(const std::function<void(at::Tensor)>& fill) {
  return [fill](const at::Tensor& x) {
    const auto copy = x.clone();
    fill(copy);
    return copy;
  };
}

Functions fills() {
  return {
      {"uniform_", in_place([](at::Tensor x) { x.uniform_(-1, 2); })},
      {"normal_", in_place([](at::Tensor x) { x.normal_(1, 2); })},
      {"exponential_", in_place([](at::Tensor x) { x.exponential_(2); })},
      {"geometric_", in_place([](at::Tensor x) { x.geometric_(0.3); })},
      {"cauchy_", in_place([](at::Tensor x) { x.cauchy_(1, 2); })},
      {"log_normal_", in_place([](at::Tensor x) { x.log_normal_(0, 0.5); })},
      {"random_", in_place([](at::Tensor x) { x.random_(); })},
      {"random_.from", in_place([](at::Tensor x) { x.random_(-7, 1000); })},
      {"random_.to", in_place([](at::Tensor x) { x.random_(9); })},
      {"bernoulli_", in_place([](at::Tensor x) { x.bernoulli_(0.4); })},
      {"rand_like", [](auto& x) { return at::rand_like(x); }},
      {"randn_like", [](auto& x) { return at::randn_like(x, at::kFloat); }},
      {"randint_like", [](auto& x) { return at::randint_like(x, 3, 50); }},
      {"bernoulli.p", [](auto& x) { return at::bernoulli(x, 0.3); }},
  };
}

Functions draws() {
  return {
      {"bernoulli", [](auto& x) { return at::bernoulli(x.sigmoid()); }},
      {"bernoulli_.Tensor",
       [](auto& x) { return x.clone().bernoulli_(x.sigmoid()); }},
      {"normal of mean", [](auto& x) { return at::normal(x, 2.0); }},
      {"normal of std", [](auto& x) { return at::normal(2.0, x.abs()); }},
      {"normal of both", [](auto& x) { return at::normal(x, x.abs()); }},
      {"poisson", [](auto& x) { return at::poisson(x.abs() * 20); }},
      {"binomial",
       [](auto& x) { return at::binomial(at::full_like(x, 40), x.sigmoid()); }},
      {"standard_gamma",
       [](auto& x) { return at::_standard_gamma(x.abs() + 0.1); }},
      {"dirichlet",
       [](auto& x) { return at::_sample_dirichlet(x.abs() + 0.1); }},
      {"dropout", [](auto& x) { return at::dropout(x, 0.4, true); }},
      {"dropout_", in_place([](at::Tensor x) { at::dropout_(x, 0.4, true); })},
      {"native_dropout",
       [](auto& x) { return std::get<0>(at::native_dropout(x, 0.4, true)); }},
      {"feature_dropout",
       [](auto& x) { return at::feature_dropout(x, 0.4, true); }},
      {"alpha_dropout",
       [](auto& x) { return at::alpha_dropout(x, 0.4, true); }},
      {"feature_alpha_dropout",
       [](auto& x) { return at::feature_alpha_dropout(x, 0.4, true); }},
      {"bernoulli out",
       [](auto& x) {
         auto out = at::empty_like(x);
         return at::bernoulli_out(
             out, x.sigmoid(), std::optional<at::Generator>());
       }},
      {"rand_like out",
       [](auto& x) {
         auto out = at::zeros_like(x);
         return at::rand_like_out(out, x);
       }},
      {"native_dropout out",
       [](auto& x) {
         auto out = at::empty_like(x);
         auto mask = at::empty_like(x, at::kBool);
         at::native_dropout_out(out, mask, x, 0.4, true);
         return out;
       }},
      {"rrelu", [](auto& x) { return at::rrelu(x, 0.1, 0.3, true); }},
  };
}

at::Tensor rows_of_weights(const at::Tensor& x) {
  return (x.dim() > 2 ? x.flatten(1) : x).abs() + 0.01;
}

Functions choices() {
  return {
      {"multinomial",
       [](auto& x) { return at::multinomial(rows_of_weights(x), 1); }},
      {"multinomial with replacement",
       [](auto& x) { return at::multinomial(rows_of_weights(x), 4, true); }},
  };
}

std::vector<Placement> placements_of(const at::Tensor& x) {
  std::vector<Placement> all{Replicate(), Partial()};
  for (int64_t d = 0; d < x.dim(); ++d) {
    all.push_back(Shard(d));
  }
  return all;
}

at::Tensor drawn(
    const Function& draw,
    const at::Tensor& x,
    const mesh::DeviceMesh& mesh,
    const Placements& placements) {
  manual_seed(mesh, 3);
  return full_tensor(draw(distributed(x, mesh, placements)));
}

struct Sample {
  std::string name;
  Function draw;
  at::Tensor x;
  at::Tensor expected;
};

// Bit for bit, but where the values were added up in another order: pending
// ones, and a Dirichlet draw, which is divided by the sum of its row.
void expect_same_draw(
    const std::string& name,
    const Placements& placements,
    const at::Tensor& actual,
    const at::Tensor& expected) {
  const bool adds =
      name == "dirichlet" || std::ranges::any_of(placements, [](const auto& p) {
        return p.is_partial();
      });
  EXPECT_TRUE(
      adds ? at::allclose(actual, expected, 1e-12, 1e-12)
           : at::equal(actual, expected))
      << name << " of " << expected.sizes() << " " << to_string(placements);
}

void expect_same_on_every_mesh(
    const Functions& functions,
    const std::vector<at::Tensor>& inputs) {
  std::vector<Sample> samples;
  for (const auto& [name, draw] : functions) {
    for (const auto& x : inputs) {
      samples.push_back(
          {name, draw, x, drawn(draw, x, fake_line(0, 1), {Replicate()})});
    }
  }
  for (const int n : {2, 3, 4}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = self.mesh({n}, {"tp"});
      for (const auto& [name, draw, x, expected] : samples) {
        SCOPED_TRACE(name);
        for (const auto& placement : placements_of(x)) {
          expect_same_draw(
              name, {placement}, drawn(draw, x, mesh, {placement}), expected);
        }
      }
    });
  }
}

const std::vector<at::Tensor>& inputs() {
  static const std::vector<at::Tensor> all{
      random({5, 7}, 1), random({1, 2}, 2), random({4, 3, 2}, 3)};
  return all;
}

TEST(RandomOps, FillsAreTheSameOnEveryMesh) {
  expect_same_on_every_mesh(fills(), inputs());
}

TEST(RandomOps, DrawsAreTheSameOnEveryMesh) {
  expect_same_on_every_mesh(draws(), inputs());
}

TEST(RandomOps, ChoicesAreTheSameOnEveryMesh) {
  expect_same_on_every_mesh(choices(), inputs());
}

TEST(RandomOps, TwoMeshDimsAndStridedShards) {
  auto functions = fills();
  for (const auto& more : {draws(), choices()}) {
    functions.insert(functions.end(), more.begin(), more.end());
  }
  const auto x = random({8, 6}, 1);
  std::vector<at::Tensor> expected;
  for (const auto& [name, draw] : functions) {
    expected.push_back(drawn(draw, x, fake_line(0, 1), {Replicate()}));
  }
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    for (size_t i = 0; i < functions.size(); ++i) {
      SCOPED_TRACE(functions[i].first);
      for (const auto& placements : std::vector<Placements>{
               {Shard(0), Shard(1)},
               {Shard(0), Shard(0)},
               {StridedShard(0, 2), Shard(0)},
               {StridedShard(1, 2), Replicate()},
               {Partial(), Shard(0)},
               {Partial(), Partial()}}) {
        expect_same_draw(
            functions[i].first,
            placements,
            drawn(functions[i].second, x, mesh, placements),
            expected[i]);
      }
    }
  });
}

TEST(RandomOps, EachOpDrawsOthersAndTheStateBringsThemBack) {
  const auto mesh = fake_mesh(0, {1, 1}, {"dp", "tp"});
  const auto x = distributed(random({64}, 1), mesh["tp"], {Replicate()});
  const auto draw = [&] { return to_local(at::rand_like(x)); };
  manual_seed(mesh, 1);
  const auto first = draw();
  const auto state = random_state(mesh["dp"]);
  EXPECT_EQ(state, (RandomState{1, 1}));
  const auto second = draw();
  EXPECT_FALSE(at::equal(first, second));
  set_random_state(mesh, state);
  EXPECT_TRUE(at::equal(draw(), second));
  manual_seed(mesh, 2);
  EXPECT_FALSE(at::equal(draw(), first));
  manual_seed(mesh["tp"], 1);
  {
    const RandomScope scope(mesh, {.seed = 9, .sequence = 4});
    EXPECT_FALSE(at::equal(draw(), first));
  }
  EXPECT_TRUE(at::equal(draw(), first));
}

TEST(RandomOps, AReplicaDrawsItsPartOfTheGlobalBatch) {
  const RandomState state{.seed = 4, .sequence = 7};
  const auto draw = [&](int64_t samples, const auto& batch) {
    const auto mesh = fake_line(0, 1);
    const RandomScope scope(mesh, state, batch);
    return to_local(at::rand_like(
        distributed(random({3, 2 * samples, 5}, 1), mesh, {Replicate()})));
  };
  const auto whole = draw(6, std::nullopt);
  const auto part = draw(
      2,
      std::optional(RandomBatch{
          .dim = 1, .first_sample = 3, .samples = 2, .global_samples = 6}));
  EXPECT_TRUE(at::equal(part, whole.narrow(1, 6, 4)));
}

TEST(RandomOps, AGeneratorIsRefused) {
  const auto x = distributed(random({4}, 1), fake_line(0, 2), {Shard(0)});
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { at::bernoulli(x, 0.5, generator); },
           [&] { x.clone().normal_(0, 1, generator); },
           [&] { at::multinomial(x.abs(), 1, false, generator); }}) {
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(use),
        HasSubstr("manual_seed(mesh, seed)"));
  }
}

TEST(RandomOps, BadParametersAreRefused) {
  const auto x = distributed(random({4}, 1), fake_line(0, 2), {Shard(0)});
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { x.clone().uniform_(1, 0); },
           [&] { x.clone().normal_(0, -1); },
           [&] { x.clone().bernoulli_(1.5); },
           [&] { x.clone().exponential_(0); },
           [&] { x.clone().random_(3, 3); },
           [&] { at::dropout(x, -0.1, true); },
           [&] { at::multinomial(x, 9); }}) {
    EXPECT_FALSE(message_of_thrown<c10::ValueError>(use).empty());
  }
}

TEST(RandomOps, DropoutPassesGradientsThroughItsMask) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    for (const auto& placement : {Shard(0), Replicate()}) {
      const auto x =
          distributed(at::ones({5, 4}).requires_grad_(), mesh, {placement});
      for (const bool native : {false, true}) {
        const auto y = native ? std::get<0>(at::native_dropout(x, 0.5, true))
                              : at::dropout(x, 0.5, true);
        x.mutable_grad().reset();
        y.sum().backward();
        EXPECT_TRUE(at::equal(full_tensor(x.grad()), full_tensor(y)));
      }
    }
  });
}

// ---- distributions ----------------------------------------------------------

void expect_moments(
    const at::Tensor& numbers,
    double mean,
    double variance,
    std::string_view what) {
  const auto x = full_tensor(numbers).to(at::kDouble);
  // Six standard errors; the fourth moments here are below 25 variances.
  const double error = 6 / std::sqrt(static_cast<double>(x.numel()));
  EXPECT_NEAR(x.mean().item<double>(), mean, error * std::sqrt(variance))
      << what;
  EXPECT_NEAR(x.var().item<double>(), variance, 5 * error * variance) << what;
}

TEST(RandomOps, NumbersHaveTheirDistributions) {
  const auto mesh = fake_line(0, 1);
  const auto x =
      distributed(at::zeros({100, 1000}, at::kDouble), mesh, {Replicate()});
  const auto of = [&](double value) { return x + value; };
  manual_seed(mesh, 1);
  expect_moments(x.clone().exponential_(2), 0.5, 0.25, "exponential");
  expect_moments(x.clone().geometric_(0.25), 4, 12, "geometric");
  expect_moments(
      x.clone().log_normal_(0, 0.5),
      std::exp(0.125),
      (std::exp(0.25) - 1) * std::exp(0.25),
      "log normal");
  expect_moments(x.clone().random_(0, 10), 4.5, 99 / 12.0, "random");
  expect_moments(x.clone().bernoulli_(0.3), 0.3, 0.21, "bernoulli");
  EXPECT_NEAR(
      full_tensor(x.clone().cauchy_(3, 2)).median().item<double>(), 3, 0.1);
  for (const double rate : {0.5, 4.0, 30.0, 400.0}) {
    expect_moments(at::poisson(of(rate)), rate, rate, "poisson");
    expect_moments(at::_standard_gamma(of(rate)), rate, rate, "gamma");
  }
  for (const auto& [n, p] :
       {std::pair(10.0, 0.2), std::pair(100.0, 0.4), std::pair(300.0, 0.9)}) {
    expect_moments(
        at::binomial(of(n), of(p)), n * p, n * p * (1 - p), "binomial");
  }
}

TEST(RandomOps, ChoicesFollowTheirWeights) {
  const auto mesh = fake_line(0, 1);
  const auto weights = distributed(
      at::tensor({1.0, 0.0, 3.0, 4.0}).repeat({20000, 1}), mesh, {Replicate()});
  for (const bool replacement : {false, true}) {
    const auto counts =
        at::bincount(
            to_local(at::multinomial(weights, 1, replacement)).flatten(), {}, 4)
            .to(at::kDouble) /
        20000;
    EXPECT_TRUE(at::allclose(
        counts, at::tensor({0.125, 0.0, 0.375, 0.5}, at::kDouble), 0, 0.025))
        << counts;
    EXPECT_EQ(counts[1].item<double>(), 0);
  }
  const auto all = to_local(at::multinomial(weights.narrow(1, 2, 2), 2));
  EXPECT_TRUE(at::equal(all.sum(1), at::ones({20000}, at::kLong)));
  const auto permutation = to_local(randperm(50, mesh));
  EXPECT_TRUE(at::equal(std::get<0>(permutation.sort()), at::arange(50)));
  EXPECT_FALSE(at::equal(permutation, at::arange(50)));
}

TEST(RandomOps, InsideDeferredInitTheyAreRemembered) {
  const auto made = [](int64_t rank, int64_t size) {
    at::Tensor x;
    {
      const DeferredInit scope;
      x = at::randn_like(torch::empty({4, 3}));
    }
    EXPECT_TRUE(is_deferred(x));
    set_placements(x, fake_line(rank, size), {Shard(0)});
    materialize_tensor(x, 1, "x");
    return dtensor_impl(x)->local();
  };
  EXPECT_TRUE(at::equal(at::cat({made(0, 2), made(1, 2)}), made(0, 1)));
}

} // namespace
} // namespace weft::dtensor
