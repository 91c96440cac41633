// Cross entropy and z-loss in all their forms equal PyTorch's stored values
// (oracle/losses.py) however logits, targets and weights lie, and cut classes
// are never gathered.

#include <cmath>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "dtensor/kernels/cross_entropy.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/dtensor/on_ranks.h"

namespace weft::dtensor {
namespace {

namespace F = torch::nn::functional;
using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::kR;
using dtensor::test::line;
using dtensor::test::random;
using ::testing::ElementsAre;
using ::testing::Pair;
using weft::test::RankContext;
using weft::test::run_ranks;

// chirp() of oracle/losses.py.
at::Tensor chirp(at::IntArrayRef sizes, double phase) {
  const auto k = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return at::sin(k * k * 0.013 + k * 1.7 + phase).view(sizes);
}

struct LossCase {
  std::string name;
  at::Tensor logits, target;
  CrossEntropyOptions options;
  at::Tensor loss, grad;
};

at::Tensor stored(const nlohmann::json& numbers, at::IntArrayRef sizes) {
  std::vector<double> values;
  for (const auto& number : numbers) {
    values.push_back(number.is_null() ? std::nan("") : number.get<double>());
  }
  return at::tensor(values, at::kDouble).view(sizes);
}

int64_t reduction_of(const std::string& name) {
  return name == "none"   ? at::Reduction::None
         : name == "mean" ? at::Reduction::Mean
                          : at::Reduction::Sum;
}

at::Tensor target_of(
    const std::string& kind,
    at::IntArrayRef sizes,
    at::IntArrayRef rows,
    int64_t dim) {
  if (kind == "probabilities") {
    return (chirp(sizes, 0.4) * 2).softmax(dim);
  }
  if (kind == "ignored") {
    return at::full(rows, -100, at::kLong);
  }
  const auto k = at::arange(c10::multiply_integers(rows), at::kLong).view(rows);
  return (k * 5 + 2).remainder(sizes[dim]);
}

LossCase make_case(const nlohmann::json& json) {
  const auto sizes = json["sizes"].get<std::vector<int64_t>>();
  const int64_t dim = sizes.size() == 1 ? 0 : 1;
  auto rows = sizes;
  rows.erase(rows.begin() + dim);
  LossCase each;
  auto without_numbers = json;
  without_numbers.erase("loss");
  without_numbers.erase("grad");
  each.name = without_numbers.dump();
  each.logits = chirp(sizes, 0.1) * 3;
  each.target = target_of(json["target"], sizes, rows, dim);
  if (json["weighted"].get<bool>()) {
    each.options.weight = chirp({sizes[dim]}, 0.2).abs() + 0.25;
  }
  each.options.reduction = reduction_of(json["reduction"]);
  each.options.ignore_index = json["ignore_index"];
  each.options.label_smoothing = json["label_smoothing"];
  each.options.z_loss = json["z_loss"];
  each.loss = stored(
      json["loss"],
      json["reduction"] == "none" ? at::IntArrayRef(rows) : at::IntArrayRef());
  each.grad = stored(json["grad"], sizes);
  return each;
}

std::vector<LossCase> stored_cases() {
  std::ifstream file(WEFT_TEST_DTENSOR_FOLDER "/oracle/losses.json");
  std::vector<LossCase> cases;
  const auto all = nlohmann::json::parse(file);
  for (const auto& json : all["cases"]) {
    cases.push_back(make_case(json));
  }
  EXPECT_EQ(cases.size(), 180U);
  return cases;
}

// NaN equals NaN.
void expect_numbers(
    const at::Tensor& actual,
    const at::Tensor& expected,
    const char* what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(actual.isnan().equal(expected.isnan())) << what;
  expect_close(actual.nan_to_num(), expected.nan_to_num(), 1e-10, what);
}

void expect_stored(
    const LossCase& each,
    const at::Tensor& loss,
    const at::Tensor& logits) {
  const auto whole = full_tensor(loss);
  expect_numbers(whole.detach(), each.loss, "loss");
  (whole * chirp(whole.sizes(), 0.3)).sum().backward();
  ASSERT_TRUE(logits.grad().defined());
  expect_numbers(full_tensor(logits.grad()), each.grad, "gradient");
}

TEST(Losses, PlainTensorsEqualPyTorch) {
  for (const auto& each : stored_cases()) {
    SCOPED_TRACE(each.name);
    const auto logits = each.logits.clone().requires_grad_();
    const auto loss = cross_entropy(logits, each.target, each.options);
    expect_numbers(loss.detach(), each.loss, "loss");
    (loss * chirp(loss.sizes(), 0.3)).sum().backward();
    expect_numbers(logits.grad(), each.grad, "gradient");
  }
}

// Where logits lie, and whether a target or weights are elsewhere.
struct LossWay {
  Placements logits;
  /// Cut where nobody asked for it.
  bool moved = false;
};

void check_way(
    const LossCase& each,
    const mesh::DeviceMesh& mesh,
    const LossWay& way) {
  SCOPED_TRACE(each.name + " " + to_string(way.logits));
  const Placements whole(way.logits.size(), kR);
  Placements other = whole;
  if (way.moved && each.target.dim() > 0) {
    other.back() = Shard(0);
  }
  const auto logits =
      distributed(each.logits.clone().requires_grad_(), mesh, way.logits);
  const auto target = distributed(each.target, mesh, other);
  auto options = each.options;
  if (options.weight.defined()) {
    auto cut = whole;
    if (way.moved) {
      cut.back() = Shard(0);
    }
    options.weight = distributed(options.weight, mesh, cut);
  }
  expect_stored(each, cross_entropy(logits, target, options), logits);
}

// Every way of cutting logits of so many dims on a mesh of one dim.
std::vector<LossWay> ways_of(const LossCase& each) {
  std::vector<LossWay> ways{{{kR}}};
  for (int64_t dim = 0; dim < each.logits.dim(); ++dim) {
    ways.push_back({{Shard(dim)}});
    ways.push_back({{Shard(dim)}, /*moved=*/true});
  }
  const int64_t classes = each.logits.dim() == 1 ? 0 : 1;
  ways.push_back({{StridedShard(classes, 2)}});
  return ways;
}

TEST(Losses, EqualPyTorchHoweverTheyLie) {
  const auto cases = stored_cases();
  // Three classes on four ranks: the last has none.
  for (const int n : {2, 4}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = line(self);
      for (const auto& each : cases) {
        for (const auto& way : ways_of(each)) {
          check_way(each, mesh, way);
        }
      }
    });
  }
}

TEST(Losses, RowsAndClassesCutOverTwoMeshDims) {
  const auto cases = stored_cases();
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    for (const auto& each : cases) {
      if (each.logits.dim() < 2) {
        check_way(each, mesh, {{Shard(0), Shard(0)}});
        continue;
      }
      for (const auto& way : std::vector<Placements>{
               {Shard(0), Shard(1)},
               {Shard(1), Shard(0)},
               {Shard(1), Shard(1)},
               {StridedShard(1, 2), Shard(1)},
               {Partial(), Shard(1)},
               {Shard(0), Shard(0)}}) {
        check_way(each, mesh, {way});
      }
    }
  });
}

TEST(Losses, UnmodifiedCodeTakesTheSamePath) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto whole = random({5, 7}, 1);
    const auto target = at::tensor({0, 6, 3, -100, 3}, at::kLong);
    const auto weight = random({7}, 2).abs();
    const auto expected = F::cross_entropy(
        whole,
        target,
        F::CrossEntropyFuncOptions().weight(weight).label_smoothing(0.1));
    const auto nll = F::nll_loss(F::log_softmax(whole, 1), target);
    const auto logits = distributed(whole, mesh, {Shard(1)});
    const auto where = distributed(target, mesh, {kR});
    expect_close(
        full_tensor(F::cross_entropy(
            logits,
            where,
            F::CrossEntropyFuncOptions()
                .weight(distributed(weight, mesh, {kR}))
                .label_smoothing(0.1))),
        expected,
        1e-12,
        "cross_entropy");
    expect_close(
        full_tensor(F::nll_loss(F::log_softmax(logits, 1), where)),
        nll,
        1e-12,
        "nll_loss");
  });
}

// Bytes of the all_gathers of one loss and its backward.
void expect_gathered(
    const mesh::DeviceMesh& mesh,
    const CrossEntropyOptions& options,
    const at::Tensor& target,
    int64_t numbers) {
  auto& flight_recorder = mesh.group(0).flight_recorder();
  const auto logits =
      distributed(random({6, 64}, 1).requires_grad_(), mesh, {Shard(1)});
  flight_recorder.reset();
  cross_entropy(logits, target, options).backward();
  EXPECT_THAT(flight_recorder.counts(), ElementsAre(Pair("all_gather", 1)));
  EXPECT_EQ(flight_recorder.total_bytes(), 4 * numbers * 8);
}

TEST(Losses, NeverGatherTheLogits) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = line(self);
    const auto target = distributed(at::arange(6, at::kLong), mesh, {kR});
    const auto weight = distributed(random({64}, 2).abs(), mesh, {kR});
    const auto q = distributed(random({6, 64}, 3).softmax(1), mesh, {Shard(1)});
    expect_gathered(mesh, {}, target, 3 * 6);
    expect_gathered(mesh, {.z_loss = 0.1}, target, 3 * 6);
    expect_gathered(mesh, {.label_smoothing = 0.1}, target, 4 * 6);
    expect_gathered(mesh, {.weight = weight}, target, 4 * 6);
    expect_gathered(
        mesh,
        {.weight = weight, .label_smoothing = 0.1, .z_loss = 0.1},
        target,
        5 * 6 + 1);
    expect_gathered(mesh, {.weight = weight}, q, 4 * 6);
  });
}

TEST(Losses, AMeanOverCutRowsIsOneMessage) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto logits = distributed(
        random({6, 8}, 1).requires_grad_(), mesh, {Shard(0), Shard(1)});
    const auto target =
        distributed(at::arange(6, at::kLong), mesh, {Shard(0), kR});
    mesh.group(0).flight_recorder().reset();
    mesh.group(1).flight_recorder().reset();
    cross_entropy(logits, target, {.z_loss = 0.1}).backward();
    EXPECT_THAT(
        mesh.group(0).flight_recorder().counts(),
        ElementsAre(Pair("all_reduce", 1)));
    EXPECT_THAT(
        mesh.group(1).flight_recorder().counts(),
        ElementsAre(Pair("all_gather", 1)));
  });
}

TEST(Losses, HalfPrecisionIsComputedInFloat) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto whole = random({6, 7}, 1, dtype);
    const auto target = at::arange(6, at::kLong);
    const CrossEntropyOptions options{.label_smoothing = 0.1, .z_loss = 0.1};
    const auto leaf = whole.to(at::kFloat).requires_grad_();
    const auto expected = cross_entropy(leaf, target, options);
    expected.backward();
    run_ranks(2, [&](RankContext& self) {
      const auto mesh = line(self);
      for (const auto& placement : {kR, Shard(0), Shard(1)}) {
        const auto logits =
            distributed(whole.clone().requires_grad_(), mesh, {placement});
        const auto loss =
            cross_entropy(logits, distributed(target, mesh, {kR}), options);
        EXPECT_EQ(loss.scalar_type(), at::kFloat);
        expect_close(full_tensor(loss).detach(), expected.detach(), 1e-6, "");
        loss.backward();
        EXPECT_EQ(logits.grad().scalar_type(), dtype);
        EXPECT_TRUE(
            full_tensor(logits.grad()).equal(leaf.grad().to(dtype)) ||
            at::allclose(
                full_tensor(logits.grad()).to(at::kFloat),
                leaf.grad(),
                /*rtol=*/8e-3,
                /*atol=*/1e-5));
      }
    });
  }
}

TEST(Losses, MaskedClassesOfAWholeRankCountNothing) {
  auto whole = random({4, 6}, 1);
  whole.narrow(1, 3, 3).fill_(-std::numeric_limits<double>::infinity());
  const auto target = at::tensor({0, 1, 2, 0}, at::kLong);
  const auto leaf = whole.clone().requires_grad_();
  const auto expected = F::cross_entropy(leaf, target);
  expected.backward();
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = line(self);
    const auto logits =
        distributed(whole.clone().requires_grad_(), mesh, {Shard(1)});
    const auto loss = F::cross_entropy(logits, distributed(target, mesh, {kR}));
    expect_close(full_tensor(loss).detach(), expected.detach(), 1e-12, "loss");
    loss.backward();
    expect_close(full_tensor(logits.grad()), leaf.grad(), 1e-12, "gradient");
  });
}

TEST(Losses, ProbabilitiesHaveGradients) {
  const auto whole = random({4, 6}, 1);
  const auto q = random({4, 6}, 2).softmax(1).requires_grad_();
  const auto weight = random({6}, 3).abs();
  const auto options =
      F::CrossEntropyFuncOptions().weight(weight).label_smoothing(0.1);
  F::cross_entropy(whole, q, options).backward();
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = line(self);
    const auto own =
        distributed(q.detach().clone().requires_grad_(), mesh, {Shard(1)});
    cross_entropy(
        distributed(whole, mesh, {Shard(1)}),
        own,
        {.weight = distributed(weight, mesh, {kR}), .label_smoothing = 0.1})
        .backward();
    expect_close(full_tensor(own.grad()), q.grad(), 1e-12, "gradient");
  });
}

// Seven rows, or two, of which some ranks get none.
struct LearningWeight {
  int64_t rows;
  double label_smoothing;
  int64_t reduction;
};

std::string describe(const LearningWeight& each) {
  return std::to_string(each.rows) + " rows, smoothing " +
         std::to_string(each.label_smoothing) + ", reduction " +
         std::to_string(each.reduction);
}

// What `loss` leaves in the gradients, or zeros.
std::vector<at::Tensor> gradients(
    const at::Tensor& loss,
    const std::vector<at::Tensor>& leaves) {
  loss.sum().backward();
  std::vector<at::Tensor> result;
  for (const auto& leaf : leaves) {
    const auto& grad = leaf.grad();
    result.push_back(
        !grad.defined()    ? at::zeros(leaf.sizes(), at::kDouble)
        : is_dtensor(grad) ? full_tensor(grad)
                           : grad);
  }
  return result;
}

void check_learning_weight(
    const LearningWeight& each,
    const mesh::DeviceMesh& mesh,
    const Placements& rows) {
  const auto x = random({each.rows, 5}, 1);
  const auto target = random({each.rows, 5}, 2).softmax(1);
  const auto weight = random({5}, 3).abs() + 0.25;
  const CrossEntropyOptions options{
      .reduction = each.reduction, .label_smoothing = each.label_smoothing};

  auto alone = options;
  alone.weight = weight.clone().requires_grad_();
  const auto leaf = x.clone().requires_grad_();
  const auto loss = cross_entropy(leaf, target, alone);
  const auto expected = gradients(loss, {leaf, alone.weight});

  auto together = options;
  together.weight =
      distribute_tensor(weight, mesh, Placements(mesh.ndim(), Replicate()))
          .detach()
          .requires_grad_();
  const auto logits =
      distribute_tensor(x, mesh, rows).detach().requires_grad_();
  const auto found_loss =
      cross_entropy(logits, distribute_tensor(target, mesh, rows), together);
  const auto what = describe(each);
  expect_close(full_tensor(found_loss).detach(), loss.detach(), 1e-12, what);
  const auto found = gradients(found_loss, {logits, together.weight});
  expect_close(found[0], expected[0], 1e-12, what + ", gradient of logits");
  expect_close(found[1], expected[1], 1e-12, what + ", gradient of weight");
}

TEST(Losses, AWeightThatLearnsGetsTheGradientOfAllRows) {
  std::vector<LearningWeight> cases;
  for (const int64_t rows : {7, 2}) {
    for (const auto reduction :
         {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
      cases.push_back({rows, 0, reduction});
      cases.push_back({rows, 0.2, reduction});
    }
  }
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](RankContext& self) {
      for (const auto& each : cases) {
        check_learning_weight(each, line(self), {Shard(0)});
        check_learning_weight(each, line(self), {Replicate()});
      }
    });
  }
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    for (const auto& each : cases) {
      check_learning_weight(each, mesh, {Shard(0), Replicate()});
      check_learning_weight(each, mesh, {Shard(0), Shard(0)});
    }
  });
}

TEST(Losses, AWeightDoesNotLearnFromClassesOnAnyRank) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    const auto weight =
        distribute_tensor(random({5}, 3).abs(), mesh, {Replicate()})
            .detach()
            .requires_grad_();
    const auto target =
        distribute_tensor(at::arange(2, at::kLong), mesh, {Shard(0)});
    // The last rank has no rows.
    const auto logits = distribute_tensor(random({2, 5}, 1), mesh, {Shard(0)});
    EXPECT_THROW(
        cross_entropy(logits, target, {.weight = weight}),
        c10::NotImplementedError);
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(full_tensor(cross_entropy(logits, target, {.weight = weight}))
                    .isfinite()
                    .item<bool>());
  });
}

TEST(Losses, WhatDoesNotFitIsAnErrorEverywhere) {
  const auto logits = random({4, 6}, 1);
  const auto target = at::arange(4, at::kLong);
  EXPECT_THROW(
      cross_entropy(logits, at::arange(3, at::kLong)), c10::ValueError);
  EXPECT_THROW(
      cross_entropy(logits, target, {.weight = random({5}, 2)}),
      c10::ValueError);
  EXPECT_THROW(
      cross_entropy(logits, target, {.label_smoothing = 1.5}), c10::ValueError);
  EXPECT_THROW(
      cross_entropy(logits, target + 3, {.z_loss = 0.1}), c10::IndexError);
  const auto weight = random({6}, 2).requires_grad_();
  EXPECT_THROW(
      cross_entropy(logits, target, {.weight = weight, .z_loss = 0.1}),
      c10::NotImplementedError);
  const auto leaf = logits.clone().requires_grad_();
  const auto grad = torch::autograd::grad(
      {cross_entropy(leaf, target, {.z_loss = 0.1})},
      {leaf},
      {},
      /*retain_graph=*/true,
      /*create_graph=*/false);
  EXPECT_EQ(grad[0].sizes(), leaf.sizes());
}

} // namespace
} // namespace weft::dtensor
