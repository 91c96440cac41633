// Where DDP finds the tensors of what forward() returns.
#include "data_parallel/output_tensors.h"

#include <array>
#include <map>
#include <unordered_map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "tests/ddp/models.h"
#include "tests/support/run_ranks.h"

namespace weft::test {

/// What a model of a user's own returns; nothing here knows of DDP.
struct Detections {
  at::Tensor boxes;
  std::vector<at::Tensor> scores;
  std::map<std::string, double> times;
};

template <class Visitor>
void for_each_tensor(const Detections& output, Visitor&& visit) {
  visit(output.boxes);
  visit(output.scores);
}

/// Uses `b` or `c`, by the sign of its input's sum.
struct TwoHeads : torch::nn::Module {
  TwoHeads()
      : a(register_module("a", torch::nn::Linear(4, 4))),
        b(register_module("b", torch::nn::Linear(4, 2))),
        c(register_module("c", torch::nn::Linear(4, 2))) {
    to(at::kDouble);
    fill_parameters(*this);
  }
  Detections forward(const at::Tensor& x, bool to_b) {
    const auto y = a(x);
    return {y.sum(), {(to_b ? b : c)(y)}, {{"forward", 0.5}}};
  }
  torch::nn::Linear a, b, c;
};

} // namespace weft::test

namespace weft::ddp {
namespace {

using test::Detections;
using test::RankContext;
using test::run_ranks;
using test::wave;

std::vector<int64_t> sizes_in(const auto& output) {
  std::vector<int64_t> sizes;
  for (const auto& tensor : data_parallel::tensors_of(output)) {
    sizes.push_back(tensor.numel());
  }
  return sizes;
}

TEST(OutputTensors, AreFoundInStandardTypesAtAnyDepth) {
  using ::testing::ElementsAre;
  using ::testing::UnorderedElementsAre;
  const auto of = [](int64_t numel) { return at::zeros({numel}); };
  EXPECT_THAT(sizes_in(of(1)), ElementsAre(1));
  EXPECT_THAT(
      sizes_in(std::tuple(
          std::pair(of(1), 7),
          std::optional(std::vector{of(2), of(3)}),
          std::optional<at::Tensor>(),
          std::string("text"),
          std::vector<bool>{true, false},
          std::variant<at::Tensor, double>(of(4)),
          std::make_shared<at::Tensor>(of(5)),
          std::array{of(6)})),
      ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(
      sizes_in(std::unordered_map<std::string, at::Tensor>{
          {"x", of(7)}, {"y", of(8)}}),
      UnorderedElementsAre(7, 8));
}

TEST(OutputTensors, AreWhereAUsersTypeSaysTheyAre) {
  using ::testing::ElementsAre;
  const Detections one{at::zeros({1}), {at::zeros({2}), at::zeros({3})}, {}};
  EXPECT_THAT(sizes_in(one), ElementsAre(1, 2, 3));
  EXPECT_THAT(sizes_in(std::vector{one, one}), ElementsAre(1, 2, 3, 1, 2, 3));
}

TEST(OutputTensors, OfAUsersTypeAreSearchedForUnusedParameters) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    const auto model = std::make_shared<test::TwoHeads>();
    DistributedDataParallel<test::TwoHeads> ddp(
        model, dp, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      // Both ranks use b, then each another, then both c.
      const bool to_b = step == 0 || (step == 1 && self.rank == 0);
      const auto x = wave({3, 4}, step + static_cast<double>(self.rank));
      const auto output = ddp(x, to_b);
      (output.boxes + output.scores.front().sum()).backward();

      test::TwoHeads reference;
      for (int64_t rank = 0; rank < 2; ++rank) {
        const bool its = step == 0 || (step == 1 && rank == 0);
        const auto each = reference.forward(
            wave({3, 4}, step + static_cast<double>(rank)), its);
        ((each.boxes + each.scores.front().sum()) / 2).backward();
      }
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        const auto expected = reference.parameters()[i].grad();
        const auto grad = model->parameters()[i].grad();
        if (expected.defined()) {
          EXPECT_TRUE(at::allclose(grad, expected)) << step << " " << i;
        } else {
          EXPECT_TRUE(!grad.defined() || grad.eq(0).all().item<bool>());
        }
      }
    }
  });
}

} // namespace
} // namespace weft::ddp
