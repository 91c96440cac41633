// Decoders with a cache of keys and values give the logits that they give
// without, on every mesh.

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/dtensor.h"
#include "models/plans.h"
#include "tests/models/formula.h"
#include "tests/support/run_ranks.h"

namespace weft::models {
namespace {

constexpr int64_t kCachedVocabulary = 37;
constexpr int64_t kCachedRows = 3;
constexpr int64_t kCachedLength = 11;

template <class Config>
Config cached_config() {
  Config config;
  config.dim = 24;
  config.heads = 6;
  config.ffn_dim = 20;
  config.vocab_size = kCachedVocabulary;
  return config;
}

Gpt2Config cached_gpt2() {
  auto config = cached_config<Gpt2Config>();
  config.max_position_embeddings = kCachedLength;
  return config;
}

template <class Config = LlamaConfig>
Config cached_llama(int64_t kv_heads) {
  auto config = cached_config<Config>();
  config.kv_heads = kv_heads;
  config.max_sequence_length = kCachedLength;
  return config;
}

MoeConfig cached_moe() {
  auto config = cached_llama<MoeConfig>(6);
  config.num_experts = 5;
  return config;
}

at::Tensor cached_tokens() {
  return (at::arange(kCachedRows * kCachedLength) * 31)
      .remainder(kCachedVocabulary)
      .view({kCachedRows, kCachedLength});
}

at::Tensor values_of(const at::Tensor& tensor) {
  return dtensor::is_dtensor(tensor) ? dtensor::full_tensor(tensor) : tensor;
}

void fill_cached(Model& model) {
  const at::NoGradGuard no_grad;
  const dtensor::ImplicitReplication whole;
  double phase = 0;
  for (auto& parameter : model.parameters()) {
    parameter.copy_(
        0.4 *
        wave(parameter.numel(), phase++, at::kFloat).view(parameter.sizes()));
  }
  model.eval();
}

// Logits after the last token of each piece.
template <class Forward>
std::vector<at::Tensor> run_pieces(
    const std::vector<int64_t>& pieces,
    Forward forward) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> logits;
  int64_t begin = 0;
  for (const int64_t piece : pieces) {
    logits.push_back(
        values_of(forward(cached_tokens().narrow(1, begin, piece))));
    begin += piece;
  }
  EXPECT_EQ(begin, kCachedLength);
  return logits;
}

void expect_rows_of(
    const std::vector<at::Tensor>& actual,
    const at::Tensor& all,
    const std::vector<int64_t>& pieces) {
  int64_t end = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    end += pieces[i];
    const auto expected = all.narrow(1, end - 1, 1);
    ASSERT_EQ(actual[i].sizes(), expected.sizes());
    EXPECT_LT((actual[i] - expected).abs().max().item<double>(), 1e-5)
        << "after token " << end;
  }
}

struct CacheLayout {
  std::string name;
  int64_t dp;
  int64_t tp;
};

class KvCaches : public ::testing::TestWithParam<CacheLayout> {
 protected:
  template <class ModelImpl, class Config, class Plan>
  static void expect_same(const Config& config, Plan plan) {
    ModelImpl single(config);
    fill_cached(single);
    const at::Tensor expected = [&] {
      const at::NoGradGuard no_grad;
      return single.forward(cached_tokens());
    }();
    // More than small changes of the logits would show.
    ASSERT_GT(expected.std().item<double>(), 0.1);
    const auto& layout = GetParam();
    const auto ranks = static_cast<int>(layout.dp * layout.tp);
    test::run_ranks(ranks, [&](test::RankContext& self) {
      const auto mesh = self.mesh({layout.dp, layout.tp}, {"dp", "tp"})["tp"];
      std::shared_ptr<ModelImpl> model;
      {
        const dtensor::DeferredInit scope;
        model = std::make_shared<ModelImpl>(config);
      }
      const PlanOptions options{.sequence_parallel = false, .size = layout.tp};
      tp::parallelize_module(*model, mesh, plan(options, config));
      dtensor::materialize(*model, /*seed=*/1);
      fill_cached(*model);
      // The prompt, tokens one by one past the room there is, several at once.
      const std::vector<int64_t> pieces{4, 1, 1, 1, 3, 1};
      for (const int64_t room : {int64_t{0}, kCachedLength}) {
        KvCache cache(room);
        expect_rows_of(
            run_pieces(
                pieces,
                [&](const auto& t) { return model->forward_cached(t, cache); }),
            expected,
            pieces);
        EXPECT_EQ(cache.length(), kCachedLength);
      }
      KvCache anew;
      expect_rows_of(
          run_pieces(
              pieces,
              [&](const auto& t) {
                return model->Model::forward_cached(t, anew);
              }),
          expected,
          pieces);
      EXPECT_EQ(anew.length(), 0);
    });
  }
};

TEST_P(KvCaches, Llama) {
  expect_same<LlamaForCausalLMImpl>(cached_llama(6), llama_plan);
}

TEST_P(KvCaches, LlamaWithSharedHeads) {
  expect_same<LlamaForCausalLMImpl>(cached_llama(1), llama_plan);
}

TEST_P(KvCaches, LlamaWithGroupsAndTiedHead) {
  auto config = cached_llama(GetParam().tp == 2 ? 2 : 3);
  config.tie_embeddings = true;
  expect_same<LlamaForCausalLMImpl>(config, llama_plan);
}

TEST_P(KvCaches, Gpt2) {
  expect_same<Gpt2LMHeadModelImpl>(cached_gpt2(), gpt2_plan);
}

TEST_P(KvCaches, MixtureOfExperts) {
  expect_same<MoeForCausalLMImpl>(cached_moe(), moe_plan);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    KvCaches,
    ::testing::Values(
        CacheLayout{"Dp1Tp1", 1, 1},
        CacheLayout{"Dp1Tp2", 1, 2},
        CacheLayout{"Dp1Tp3", 1, 3},
        CacheLayout{"Dp2Tp2", 2, 2}),
    [](const auto& info) { return info.param.name; });

TEST(KvCache, EachRankKeepsItsHeads) {
  test::run_ranks(2, [](test::RankContext& self) {
    const auto config = cached_llama(6);
    const auto mesh = self.mesh({2}, {"tp"});
    std::shared_ptr<LlamaForCausalLMImpl> model;
    {
      const dtensor::DeferredInit scope;
      model = std::make_shared<LlamaForCausalLMImpl>(config);
    }
    const PlanOptions options{.sequence_parallel = false, .size = 2};
    tp::parallelize_module(*model, mesh, llama_plan(options, config));
    dtensor::materialize(*model, /*seed=*/1);
    const at::NoGradGuard no_grad;
    KvCache cache;
    for (const int64_t piece : {4, 1}) {
      model->forward_cached(cached_tokens().narrow(1, 0, piece), cache);
    }
    const auto keys = cache.layer(1).k_BKTd();
    EXPECT_EQ(keys.sizes(), at::IntArrayRef({kCachedRows, 6, 5, 4}));
    EXPECT_EQ(
        dtensor::to_local(keys).sizes(),
        at::IntArrayRef({kCachedRows, 3, 5, 4}));
  });
}

TEST(KvCache, TokensMustPayAttentionToThoseBefore) {
  // The comparison above means something only if the cache matters.
  LlamaForCausalLMImpl model(cached_llama(6));
  fill_cached(model);
  const at::NoGradGuard no_grad;
  KvCache cache;
  model.forward_cached(cached_tokens().narrow(1, 0, 4), cache);
  const auto with =
      model.forward_cached(cached_tokens().narrow(1, 4, 1), cache);
  KvCache empty;
  const auto without =
      model.forward_cached(cached_tokens().narrow(1, 4, 1), empty);
  EXPECT_GT((with - without).abs().max().item<double>(), 0.05);
}

TEST(KvCache, RowsOfOnePromptAreThoseOfABatch) {
  LlamaForCausalLMImpl model(cached_llama(2));
  fill_cached(model);
  const at::NoGradGuard no_grad;
  const auto prompt = cached_tokens().narrow(0, 0, 1).narrow(1, 0, 5);
  const auto next = at::tensor({3, 17, 3}, at::kLong).view({3, 1});
  KvCache repeated;
  model.forward_cached(prompt, repeated);
  repeated.repeat_rows(3);
  KvCache batch;
  model.forward_cached(prompt.repeat({3, 1}), batch);
  const auto actual = model.forward_cached(next, repeated);
  EXPECT_TRUE(
      at::allclose(actual, model.forward_cached(next, batch), 1e-5, 1e-6));
  EXPECT_TRUE(at::equal(actual[0], actual[2]));
  EXPECT_FALSE(at::allclose(actual[0], actual[1], 1e-3, 1e-3));
}

} // namespace
} // namespace weft::models
