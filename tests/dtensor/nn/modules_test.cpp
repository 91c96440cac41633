// Unmodified libtorch modules, built deferred, cut, and trained on several
// meshes follow one rank: losses and all parameters, to 1e-9 in float64.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/random/random_state.h"
#include "dtensor/tensor/dtensor.h"
#include "tests/dtensor/nn/train_module.h"
#include "tests/dtensor/parts.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::Built;
using dtensor::test::expect_equal_traces;
using dtensor::test::ModuleCase;
using dtensor::test::random;
using dtensor::test::train_module;
using torch::nn::AlphaDropout;
using torch::nn::BatchNorm2d;
using torch::nn::Bilinear;
using torch::nn::Conv1d;
using torch::nn::Conv1dOptions;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Dropout;
using torch::nn::Dropout2d;
using torch::nn::Embedding;
using torch::nn::EmbeddingBag;
using torch::nn::EmbeddingBagOptions;
using torch::nn::EmbeddingOptions;
using torch::nn::GroupNorm;
using torch::nn::GroupNormOptions;
using torch::nn::GRU;
using torch::nn::GRUCell;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using torch::nn::Linear;
using torch::nn::LinearOptions;
using torch::nn::LSTM;
using torch::nn::LSTMCell;
using torch::nn::LSTMOptions;
using torch::nn::MultiheadAttention;
using torch::nn::MultiheadAttentionOptions;
using torch::nn::RNN;
using torch::nn::Sequential;
using torch::nn::TransformerDecoderLayer;
using torch::nn::TransformerDecoderLayerOptions;
using torch::nn::TransformerEncoderLayer;
using torch::nn::TransformerEncoderLayerOptions;
using Tensors = std::vector<at::Tensor>;

template <class M>
Built built(M module) {
  return {module.ptr(), [module](const Tensors& x) mutable {
            return module->forward(x[0]);
          }};
}

at::Tensor integers(c10::IntArrayRef sizes, int64_t below) {
  return random(sizes, 5).mul(100).abs().to(at::kLong).remainder(below);
}

// Samples first, or where `batch_dims` say; -1: every rank has it whole.
std::vector<ModuleCase> feed_forward_cases() {
  return {
      {"Linear", [] { return built(Linear(6, 5)); }, {random({4, 6}, 1)}},
      {"LinearWithoutBias",
       [] { return built(Linear(LinearOptions(6, 4).bias(false))); },
       {random({4, 3, 6}, 1)}},
      {"Bilinear",
       [] {
         auto module = Bilinear(5, 4, 3);
         return Built{module.ptr(), [module](const Tensors& x) mutable {
                        return module->forward(x[0], x[1]);
                      }};
       },
       {random({4, 5}, 1), random({4, 4}, 2)}},
      {"LayerNorm",
       [] {
         return built(LayerNorm(LayerNormOptions(std::vector<int64_t>{3, 5})));
       },
       {random({4, 3, 5}, 1)}},
      {"GroupNorm",
       [] { return built(GroupNorm(GroupNormOptions(2, 6))); },
       {random({4, 6, 5}, 1)}},
      {"Conv1d",
       [] { return built(Conv1d(Conv1dOptions(4, 5, 3).padding(1))); },
       {random({4, 4, 7}, 1)}},
      {"Conv2d",
       [] { return built(Conv2d(Conv2dOptions(4, 6, 3).stride(2).groups(2))); },
       {random({4, 4, 7, 6}, 1)}},
      {"BatchNorm2d",
       [] { return built(BatchNorm2d(5)); },
       {random({4, 5, 3, 2}, 1)}},
      {"Dropout",
       [] {
         return built(Sequential(
             Linear(6, 5),
             Dropout(0.4),
             Linear(5, 4),
             AlphaDropout(0.2),
             Linear(4, 4)));
       },
       {random({4, 6}, 1)}},
      {"Dropout2d",
       [] { return built(Sequential(Conv2d(3, 4, 2), Dropout2d(0.5))); },
       {random({4, 3, 4, 4}, 1)}},
  };
}

std::vector<ModuleCase> lookup_cases() {
  const auto bag = [](auto mode) {
    return [mode] {
      return built(EmbeddingBag(EmbeddingBagOptions(7, 5).mode(mode)));
    };
  };
  return {
      {"Embedding",
       [] { return built(Embedding(7, 5)); },
       {integers({4, 3}, 7)}},
      {"PaddedEmbedding",
       [] { return built(Embedding(EmbeddingOptions(7, 4).padding_idx(2))); },
       {integers({4, 3}, 7)}},
      {"EmbeddingBagSum", bag(torch::kSum), {integers({5, 3}, 7)}},
      {"EmbeddingBagMean", bag(torch::kMean), {integers({4, 3}, 7)}},
      {"EmbeddingBagMax", bag(torch::kMax), {integers({4, 3}, 7)}},
  };
}

// q, k and v, [T, B, C].
Built multihead_attention() {
  auto module =
      MultiheadAttention(MultiheadAttentionOptions(8, 2).dropout(0.3));
  return {module.ptr(), [module](const Tensors& x) mutable {
            return std::get<0>(module->forward(x[0], x[1], x[1]));
          }};
}

template <class M>
Built recurrent(M module) {
  return {module.ptr(), [module](const Tensors& x) mutable {
            return std::get<0>(module->forward(x[0]));
          }};
}

std::vector<ModuleCase> sequence_cases() {
  const auto sequence = random({3, 4, 6}, 1);
  return {
      {"MultiheadAttention",
       multihead_attention,
       {random({3, 4, 8}, 1), random({5, 4, 8}, 2)},
       {1, 1}},
      {"TransformerEncoderLayer",
       [] {
         return built(TransformerEncoderLayer(
             TransformerEncoderLayerOptions(8, 2).dim_feedforward(10).dropout(
                 0.2)));
       },
       {random({3, 4, 8}, 1)},
       {1}},
      {"TransformerDecoderLayer",
       [] {
         auto module = TransformerDecoderLayer(
             TransformerDecoderLayerOptions(8, 2).dim_feedforward(9));
         return Built{module.ptr(), [module](const Tensors& x) mutable {
                        return module->forward(x[0], x[1]);
                      }};
       },
       {random({3, 4, 8}, 1), random({5, 4, 8}, 2)},
       {1, 1}},
      {"LSTM",
       [] {
         return recurrent(LSTM(LSTMOptions(6, 5).num_layers(2).dropout(0.3)));
       },
       {sequence},
       {1}},
      {"BidirectionalLSTM",
       [] {
         return recurrent(LSTM(
             LSTMOptions(6, 3).num_layers(2).bidirectional(true).batch_first(
                 true)));
       },
       {random({5, 3, 6}, 1)}},
      {"GRU", [] { return recurrent(GRU(6, 5)); }, {sequence}, {1}},
      {"RNN", [] { return recurrent(RNN(6, 5)); }, {sequence}, {1}},
      {"GRUCell", [] { return built(GRUCell(6, 5)); }, {random({4, 6}, 1)}},
      {"LSTMCell",
       [] {
         auto module = LSTMCell(6, 5);
         return Built{module.ptr(), [module](const Tensors& x) mutable {
                        return std::get<0>(module->forward(x[0]));
                      }};
       },
       {random({4, 6}, 1)}},
  };
}

class Modules : public ::testing::TestWithParam<ModuleCase> {};

TEST_P(Modules, FollowOneRankOnEveryMesh) {
  expect_equal_traces([](const mesh::DeviceMesh& mesh, int64_t cut_dim) {
    return train_module(GetParam(), mesh, cut_dim, [](const Tensors& all) {
      return std::make_unique<torch::optim::SGD>(
          all, torch::optim::SGDOptions(0.05).momentum(0.9));
    });
  });
}

std::string name_of(const ::testing::TestParamInfo<ModuleCase>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    FeedForward,
    Modules,
    ::testing::ValuesIn(feed_forward_cases()),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Lookup,
    Modules,
    ::testing::ValuesIn(lookup_cases()),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Sequence,
    Modules,
    ::testing::ValuesIn(sequence_cases()),
    name_of);

} // namespace
} // namespace weft::dtensor
