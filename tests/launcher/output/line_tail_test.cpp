#include "launcher/output/line_tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::launcher {
namespace {

using ::testing::ElementsAre;

TEST(LineTail, KeepsTheLastLinesHoweverTheyCome) {
  LineTail tail;
  for (int i = 0; i < 25; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    tail.append(line.substr(0, 3));
    tail.append(line.substr(3));
  }
  tail.append("unfinished");
  const auto lines = tail.lines();
  ASSERT_EQ(lines.size(), LineTail::kLines);
  EXPECT_EQ(lines.front(), "line 16");
  EXPECT_EQ(lines[8], "line 24");
  EXPECT_EQ(lines.back(), "unfinished");
}

TEST(LineTail, ShowsWhatATerminalWouldShow) {
  LineTail tail;
  tail.append("step 1\rstep 2\rstep 3\r\nend\r\n\n\n");
  EXPECT_THAT(tail.lines(), ElementsAre("step 3", "end"));
}

TEST(LineTail, CutsLongLines) {
  LineTail tail;
  tail.append(std::string(1 << 20, 'x'));
  tail.append("\nnext\n");
  EXPECT_EQ(tail.lines()[0].size(), LineTail::kLineBytes);
  EXPECT_EQ(tail.lines()[1], "next");
}

TEST(LineTail, FindsTheErrorLineOfACode) {
  LineTail tail;
  tail.append("ERROR 3 rank=1 op=loss not finite\n");
  for (int i = 0; i < 20; ++i) {
    tail.append("noise\n");
  }
  tail.append("ERROR rank=1\nERROR 3 oops\nan ERROR 3 rank=1\n");
  EXPECT_EQ(tail.error_line(3), "ERROR 3 rank=1 op=loss not finite");
  EXPECT_EQ(tail.error_line(1), "");
  tail.append("ERROR 150 rank=1 op=all_reduce lost");
  EXPECT_EQ(tail.error_line(150), "ERROR 150 rank=1 op=all_reduce lost");
}

} // namespace
} // namespace weft::launcher
