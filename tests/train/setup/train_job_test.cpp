#include "train/setup/train_job.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "tests/support/run_ranks.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What make_train_job() refuses of a small recipe with LoRA.
std::string refusal_of_lora(std::vector<std::string> overrides) {
  overrides.emplace_back("lora.rank=2");
  std::string message;
  test::run_ranks(1, [&](test::RankContext& self) {
    auto recipe = parse_recipe(fixtures::kMinRecipe, "r.yaml", overrides);
    validate(recipe, 1);
    message = fixtures::message_of<mesh::UsageError>([&] {
      make_train_job(recipe, self.mesh({1, 1}, {"dp", "tp"}));
    });
  });
  return message;
}

TEST(TrainJob, AnAdapterOfATiedHeadIsRefusedWithTheWayOut) {
  const std::string head = "lora.target_modules=[\"lm_head\"]";
  EXPECT_EQ(refusal_of_lora({head, "model.tie_embeddings=false"}), "");
  EXPECT_THAT(
      refusal_of_lora({head, "model.tie_embeddings=true"}),
      AllOf(
          HasSubstr("lora.target_modules: \"lm_head\": the head of this model "
                    "is tied to the embedding"),
          HasSubstr("model.tie_embeddings=false")));
  EXPECT_THAT(
      refusal_of_lora(
          {"lora.target_modules=[\"model.layers.0.self_attn.q_prj\"]",
           "model.tie_embeddings=true"}),
      AllOf(
          HasSubstr("Did you mean \"model.layers.0.self_attn.q_proj\""),
          Not(HasSubstr("tied"))));
}

} // namespace
} // namespace weft::train
