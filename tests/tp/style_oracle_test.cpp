// Each style and option against what PyTorch computed: oracle/styles.py.

#include <fstream>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "dtensor/scopes/module_call.h"
#include "tests/support/run_ranks.h"
#include "tests/tp/models.h"

namespace weft::tp {
namespace {

using nlohmann::json;
using test::RankContext;
using test::run_ranks;

constexpr int kRanks = 2;

/// A module with two inputs, one named input and two outputs.
struct TwoOfThree : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor>
  forward(const at::Tensor& a, const at::Tensor& b, const at::Tensor& mask) {
    return {a * 2 + mask, b * 3};
  }
};

struct Square : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x * x; }
};

const json& stored_cases() {
  static const auto cases =
      json::parse(std::ifstream(WEFT_TEST_TP_FOLDER "/oracle/styles.json"))
          .at("cases");
  return cases;
}

at::Tensor local_of(const at::Tensor& tensor) {
  return dtensor::is_dtensor(tensor) ? dtensor::to_local(tensor) : tensor;
}

std::string place_of(const at::Tensor& tensor) {
  return dtensor::is_dtensor(tensor)
             ? dtensor::spec_of(tensor).placements().at(0).to_string()
             : "plain";
}

void expect_stored(
    const at::Tensor& actual,
    const json& stored,
    const std::string& what) {
  const auto values = stored.at("values").get<std::vector<double>>();
  const auto expected =
      at::tensor(values, at::kDouble)
          .view(stored.at("sizes").get<std::vector<int64_t>>());
  expect_close(actual, expected, what);
}

// Backward, and all that finish() of styles.py stores.
void expect_case(
    const std::string& name,
    int64_t rank,
    const torch::nn::Module& module,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& outputs) {
  SCOPED_TRACE(name);
  const auto& stored = stored_cases().at(name).at(rank);
  at::Tensor loss;
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(
        place_of(outputs[i]), stored.at("placements").at(i).get<std::string>());
    const auto y = local_of(outputs[i]);
    expect_stored(y.detach(), stored.at("outputs").at(i), "output");
    const auto term = (y.pow(2) * wave(y.sizes(), 0.7)).sum();
    loss = loss.defined() ? loss + term : term;
  }
  loss.backward();
  size_t next = 0;
  for (const auto& input : inputs) {
    if (input.requires_grad()) {
      expect_stored(
          input.grad(), stored.at("input_grads").at(next++), "input gradient");
    }
  }
  for (const auto& item : module.named_parameters()) {
    expect_stored(
        item.value().grad(), stored.at("grads").at(item.key()), item.key());
  }
}

at::Tensor own_part(const at::Tensor& whole, int64_t dim, int64_t rank) {
  auto part = dim < 0 ? whole.clone() : whole.chunk(kRanks, dim)[rank].clone();
  return part.is_floating_point() ? part.requires_grad_() : part;
}

template <class M, class... Args>
void check_case(
    RankContext& self,
    const std::string& name,
    const ParallelStyle& style,
    const at::Tensor& whole,
    int64_t dim,
    const Args&... args) {
  M module(args...);
  module->to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    double phase = 0;
    for (auto& parameter : module->parameters()) {
      parameter.copy_(wave(parameter.sizes(), phase += 1));
    }
  }
  parallelize_module(*module, self.mesh({kRanks}, {"tp"}), style);
  const auto x = own_part(whole, dim, self.rank);
  expect_case(name, self.rank, *module, {x}, {dtensor::call(module, x)});
}

TEST(StyleOracle, ColwiseAndRowwiseLinear) {
  run_ranks(kRanks, [](RankContext& self) {
    const auto check = [&](const std::string& name,
                           const ParallelStyle& style,
                           int64_t dim = -1) {
      check_case<torch::nn::Linear>(
          self, name, style, wave({2, 4, 6}), dim, 6, 4);
    };
    check("colwise", ColwiseParallel());
    check("colwise_local", ColwiseParallel({.use_local_output = true}));
    check("colwise_from_S1", ColwiseParallel({.input_layouts = Shard(1)}), 1);
    check("colwise_to_R", ColwiseParallel({.output_layouts = Replicate()}));
    check("colwise_to_S1", ColwiseParallel({.output_layouts = Shard(1)}));
    check("rowwise", RowwiseParallel(), 2);
    check("rowwise_local", RowwiseParallel({.use_local_output = true}), 2);
    check("rowwise_from_R", RowwiseParallel({.input_layouts = Replicate()}));
    check("rowwise_to_S1", RowwiseParallel({.output_layouts = Shard(1)}), 2);
  });
}

TEST(StyleOracle, ColwiseAndRowwiseEmbedding) {
  run_ranks(kRanks, [](RankContext& self) {
    const auto check = [&](const std::string& name,
                           const ParallelStyle& style) {
      check_case<torch::nn::Embedding>(
          self, name, style, at::arange(8).remainder(7).view({2, 4}), -1, 7, 4);
    };
    check("colwise_embedding", ColwiseParallel());
    check(
        "colwise_embedding_local", ColwiseParallel({.use_local_output = true}));
    check(
        "colwise_embedding_to_R",
        ColwiseParallel({.output_layouts = Replicate()}));
    check("rowwise_embedding", RowwiseParallel());
    check(
        "rowwise_embedding_to_S1",
        RowwiseParallel({.output_layouts = Shard(1)}));
  });
}

TEST(StyleOracle, SequenceParallel) {
  run_ranks(kRanks, [](RankContext& self) {
    const auto x = wave({2, 4, 6});
    const auto check_norm =
        [&](const std::string& name, const ParallelStyle& style, int64_t dim) {
          check_case<torch::nn::LayerNorm>(
              self,
              name,
              style,
              x,
              dim,
              torch::nn::LayerNormOptions(std::vector<int64_t>{6}));
        };
    const auto local = SequenceParallel({.use_local_output = true});
    check_norm("sequence_norm", SequenceParallel(), 1);
    check_norm("sequence_norm_local", local, 1);
    check_norm("sequence_norm_dim0", SequenceParallel(0), 0);
    using SquareHolder = torch::nn::ModuleHolder<Square>;
    check_case<SquareHolder>(self, "sequence_square", SequenceParallel(), x, 1);
    check_case<SquareHolder>(self, "sequence_square_local", local, x, 1);
  });
}

void check_prepared(
    RankContext& self,
    const std::string& name,
    const ParallelStyle& style,
    const std::vector<int64_t>& dims) {
  const auto module = std::make_shared<TwoOfThree>();
  parallelize_module(*module, self.mesh({kRanks}, {"tp"}), style);
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < dims.size(); ++i) {
    inputs.push_back(
        own_part(wave({2, 4, 6}, static_cast<double>(i)), dims[i], self.rank));
  }
  const auto [first, second] = dtensor::call(
      module, inputs[0], inputs[1], dtensor::kwarg("mask", inputs[2]));
  expect_case(name, self.rank, *module, inputs, {first, second});
}

TEST(StyleOracle, PrepareModuleInputAndOutput) {
  run_ranks(kRanks, [](RankContext& self) {
    PrepareModuleInputOptions inputs{
        .input_layouts = {Shard(0), std::nullopt},
        .desired_input_layouts = {Replicate(), std::nullopt},
        .input_kwarg_layouts = {{"mask", Shard(1)}},
        .desired_input_kwarg_layouts = {{"mask", Replicate()}}};
    PrepareModuleOutputOptions outputs{
        .output_layouts = {Shard(0), Shard(1)},
        .desired_output_layouts = {Replicate(), Shard(0)}};
    check_prepared(
        self, "prepare_input", PrepareModuleInput(inputs), {0, -1, 1});
    check_prepared(
        self, "prepare_output", PrepareModuleOutput(outputs), {0, 1, 0});
    check_prepared(
        self,
        "prepare_input_output",
        PrepareModuleInputOutput(
            {.input_layouts = inputs.input_layouts,
             .desired_input_layouts = inputs.desired_input_layouts,
             .input_kwarg_layouts = inputs.input_kwarg_layouts,
             .desired_input_kwarg_layouts = inputs.desired_input_kwarg_layouts,
             .output_layouts = {Replicate(), std::nullopt},
             .desired_output_layouts = {Shard(2), std::nullopt}}),
        {0, -1, 1});
    inputs.use_local_output = true;
    outputs.use_local_output = true;
    check_prepared(
        self, "prepare_input_local", PrepareModuleInput(inputs), {0, -1, 1});
    check_prepared(
        self, "prepare_output_local", PrepareModuleOutput(outputs), {0, 1, 0});
  });
}

} // namespace
} // namespace weft::tp
