// Embeddings and tied heads cut by vocabularies that the ranks do not divide.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/run_ranks.h"
#include "tests/tp/models.h"

namespace weft::tp {
namespace {

using test::RankContext;
using test::run_ranks;
using ::testing::ElementsAre;

/// The head is the embedding's weight, as in GPT-2.
template <int64_t kVocabulary>
struct TiedModel : torch::nn::Module {
  TiedModel()
      : embed(register_module("embed", torch::nn::Embedding(kVocabulary, 6))),
        middle(register_module("middle", torch::nn::Linear(6, 6))) {}
  at::Tensor forward(const at::Tensor& tokens) {
    return at::linear(at::tanh(middle(embed(tokens))), embed->weight);
  }
  torch::nn::Embedding embed;
  torch::nn::Linear middle;
};

template <int64_t kVocabulary>
void check_tied(
    int ranks,
    Placement stream,
    const std::vector<int64_t>& expected_rows) {
  run_ranks(ranks, [&](RankContext& self) {
    const auto mesh = self.mesh({ranks}, {"tp"});
    auto model = make_parallel<TiedModel<kVocabulary>>(
        mesh,
        {{"embed", RowwiseParallel({.output_layouts = stream})},
         {"middle", NoParallel({.input_layout = stream})}});
    auto alone = plain_copy(*model);
    EXPECT_EQ(
        dtensor::to_local(model->embed->weight).size(0),
        expected_rows.at(self.rank));
    const auto tokens =
        at::arange(24).mul(7).remainder(kVocabulary).view({2, 12});
    const auto y = model->forward(tokens);
    const auto expected = alone->forward(tokens);
    // Logits stay cut by vocabulary.
    EXPECT_THAT(dtensor::spec_of(y).placements(), ElementsAre(Shard(2)));
    expect_close(y, expected, "logits");
    loss_of(y).backward();
    loss_of(expected).backward();
    expect_same_gradients(*model, *alone);
    torch::optim::AdamW optimizer(
        model->parameters(), torch::optim::AdamWOptions(0.01));
    torch::optim::AdamW optimizer_alone(
        alone->parameters(), torch::optim::AdamWOptions(0.01));
    optimizer.step();
    optimizer_alone.step();
    expect_close(model->embed->weight, alone->embed->weight, "weight");
    expect_close(model->forward(tokens), alone->forward(tokens), "next logits");
  });
}

TEST(Vocabulary, TiedHeadsOfUnevenVocabularies) {
  for (const auto& stream : {Replicate(), Shard(1)}) {
    check_tied<101>(2, stream, {51, 50});
    check_tied<101>(3, stream, {34, 34, 33});
    // The last rank has no row.
    check_tied<5>(4, stream, {2, 2, 1, 0});
  }
}

} // namespace
} // namespace weft::tp
