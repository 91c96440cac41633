#include "base/failure_line.h"

#include <array>

#include <gtest/gtest.h>

namespace weft::base {
namespace {

TEST(FailureLine, IsReadAsItIsWritten) {
  const FailureLine line{
      .code = 150, .rank = 3, .op = "train", .text = "[all_reduce] lost"};
  const auto text = line.to_string();
  EXPECT_EQ(text, "ERROR 150 rank=3 op=train [all_reduce] lost");
  const auto read = FailureLine::parse(text);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->code, 150);
  EXPECT_EQ(read->rank, 3);
  EXPECT_EQ(read->op, "train");
  EXPECT_EQ(read->text, "[all_reduce] lost");
}

TEST(FailureLine, IsOneLine) {
  const FailureLine line{.code = 1, .rank = 0, .op = "x", .text = "a\nb"};
  EXPECT_EQ(line.to_string(), "ERROR 1 rank=0 op=x a b");
}

TEST(FailureLine, BeginsTheSameInASignalHandler) {
  std::array<char, 64> memory;
  SafeWriter out(memory);
  write_failure_start(out, 134, 2, "crash");
  EXPECT_EQ(out.view(), "ERROR 134 rank=2 op=crash ");
}

TEST(FailureLine, OtherLinesAreNone) {
  for (const auto* line :
       {"",
        "ERROR",
        "ERROR 3 oops",
        "ERROR rank=1 op=x y",
        "ERROR 3 rank=1",
        "ERROR 3 rank=one op=x y",
        "ERROR 99999999999 rank=1 op=x y",
        " ERROR 3 rank=1 op=x y"}) {
    EXPECT_FALSE(FailureLine::parse(line)) << line;
  }
  EXPECT_EQ(FailureLine::parse("ERROR 3 rank=1 op=x")->text, "");
}

} // namespace
} // namespace weft::base
