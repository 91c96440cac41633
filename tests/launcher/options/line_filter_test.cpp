// Which lines are copied, and what a line is.
#include "launcher/options/line_filter.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/output/sink.h"
#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

using ::testing::ElementsAre;

TEST(LineFilter, ALineNeedsOneOfTheTexts) {
  const auto filter = LineFilter::parse("--flag", "loss,grad,,norm");
  EXPECT_TRUE(filter.matches("step 1 loss 2"));
  EXPECT_TRUE(filter.matches("grad,norm 3"));
  EXPECT_FALSE(filter.matches("grad norm 3"));
  EXPECT_FALSE(filter.matches(""));
}

TEST(LineFilter, ThreeCommasAreACommaAndTheNextPart) {
  const auto filter = LineFilter::parse("--flag", "a,,,b");
  EXPECT_TRUE(filter.matches("a,"));
  EXPECT_TRUE(filter.matches("b"));
  EXPECT_FALSE(filter.matches("a"));
}

TEST(LineFilter, AnEmptyTextMatchesNothingAndAnEmptyPartIsRefused) {
  const auto filter = LineFilter::parse("--flag", "");
  EXPECT_FALSE(filter.any());
  EXPECT_FALSE(filter.matches("a"));
  for (const char* text : {"a,", ",a"}) {
    EXPECT_THROW(LineFilter::parse("--flag", text), LaunchError) << text;
  }
}

std::vector<std::string> lines(
    const std::vector<std::string>& pieces,
    size_t max_bytes = 100) {
  std::vector<std::string> result;
  const auto keep = [&](std::string_view line) { result.emplace_back(line); };
  LineBuffer whole(max_bytes);
  for (const auto& piece : pieces) {
    whole.append(piece, keep);
  }
  whole.finish(keep);
  return result;
}

TEST(LineBuffer, AreMadeOfPieces) {
  EXPECT_THAT(
      lines({"a", "b\nc\n\nd", "", "e"}),
      ElementsAre("ab\n", "c\n", "\n", "de\n"));
  EXPECT_THAT(lines({"a\n"}), ElementsAre("a\n"));
  EXPECT_THAT(lines({}), ElementsAre());
}

TEST(LineBuffer, AreCutWhereTheyAreTooLong) {
  EXPECT_THAT(lines({"abc", "de", "f\n"}, 4), ElementsAre("abcde\n", "f\n"));
}

} // namespace
} // namespace weft::launcher
