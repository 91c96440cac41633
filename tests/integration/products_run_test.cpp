// Runs whose recipe says who multiplies (docs/matmul.md): the real programs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ProductsRunTest : public ProcessTest {
 protected:
  /// Trains up to `steps` on one rank, in the same folder each time.
  std::unique_ptr<Process>
  run(int steps, Words more, const Process::Variables& variables = {}) const {
    Words words{
        "mesh.dp=1",
        "train.steps=" + std::to_string(steps),
        "checkpoint.every=2",
        "eval.every=0"};
    words.insert(words.end(), more.begin(), more.end());
    auto process = std::make_unique<Process>(train(words), folder_, variables);
    process->wait();
    return process;
  }

  /// Why oneDNN is not there to be asked for; empty: it is.
  std::string onednn_problem(const Process::Variables& variables = {}) const {
    const auto tried =
        run(2, {"products=onednn", "output_dir=tried"}, variables);
    return tried->wait() == 0 ? "" : tried->last_error_line();
  }
};

TEST_F(ProductsRunTest, AResumedRunKeepsItsLibrary) {
  ASSERT_EQ(run(2, {"products=libtorch"})->wait(), 0);
  const auto resumed = run(4, {});
  ASSERT_EQ(resumed->wait(), 0) << resumed->error();
  EXPECT_THAT(resumed->output(), HasSubstr("products: libtorch"));
  EXPECT_THAT(resumed->output(), Not(HasSubstr("was used before")));
}

TEST_F(ProductsRunTest, AnotherLibraryIsSaid) {
  if (const auto problem = onednn_problem(); !problem.empty()) {
    GTEST_SKIP() << problem;
  }
  ASSERT_EQ(run(2, {"products=libtorch"})->wait(), 0);
  const auto resumed = run(4, {"products=onednn"});
  ASSERT_EQ(resumed->wait(), 0) << resumed->error();
  EXPECT_THAT(
      resumed->output(),
      HasSubstr("products: libtorch was used before this checkpoint and onednn "
                "is used from now on"));
}

// As two hosts with processors of two vendors would.
TEST_F(ProductsRunTest, RanksThatDifferEndWithBothNames) {
  if (const auto problem = onednn_problem(); !problem.empty()) {
    GTEST_SKIP() << problem;
  }
  const int port = free_port();
  const auto rank = [&](int number, const std::string& library) {
    return std::make_unique<Process>(
        train({"mesh.dp=2", "products=" + library}),
        folder_,
        rank_variables(number, 2, port));
  };
  const auto first = rank(0, "libtorch");
  const auto second = rank(1, "onednn");
  EXPECT_EQ(first->wait(), 5);
  EXPECT_EQ(second->wait(), 5);
  EXPECT_THAT(
      second->error(),
      AllOf(HasSubstr("products"), HasSubstr("libtorch"), HasSubstr("onednn")));
}

TEST_F(ProductsRunTest, AnUnknownLibraryIsRefused) {
  const auto refused = run(2, {"products=mkl"});
  EXPECT_EQ(refused->wait(), 2);
  EXPECT_THAT(
      refused->error(),
      HasSubstr("expected one of auto, libtorch, onednn, found mkl"));
}

// oneDNN told that the processor has AVX2 at most.
TEST_F(ProductsRunTest, BFloat16WithoutProductsOfItIsMadeInFloat32) {
  const Process::Variables avx2{{"ONEDNN_MAX_CPU_ISA", "AVX2"}};
  if (const auto problem = onednn_problem(avx2); !problem.empty()) {
    GTEST_SKIP() << problem;
  }
  const auto made = run(2, {"train.dtype=bfloat16"}, avx2);
  EXPECT_EQ(made->wait(), 0) << made->error();
  EXPECT_THAT(made->output(), HasSubstr("products: onednn"));
  const auto refused =
      run(2,
          {"train.dtype=bfloat16", "products=libtorch", "output_dir=refused"},
          avx2);
  EXPECT_EQ(refused->wait(), 2);
  EXPECT_THAT(
      refused->error(),
      HasSubstr("products: this processor cannot multiply bfloat16"));
}

} // namespace
} // namespace weft::test
