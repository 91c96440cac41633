#include "launcher/options/stream_selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

constexpr int kStdout = StreamSelection::kStdout;
constexpr int kStderr = StreamSelection::kStderr;

TEST(StreamSelection, OneNumberIsForAllWorkers) {
  const auto both = StreamSelection::parse("--tee", "3");
  EXPECT_TRUE(both.has(0, kStdout));
  EXPECT_TRUE(both.has(7, kStderr));
  EXPECT_TRUE(both.any());
  EXPECT_EQ(both.max_rank(), -1);

  const auto errors = StreamSelection::parse("--tee", "2");
  EXPECT_FALSE(errors.has(0, kStdout));
  EXPECT_TRUE(errors.has(0, kStderr));

  EXPECT_FALSE(StreamSelection::parse("--tee", "0").any());
}

TEST(StreamSelection, AListIsForTheRanksItNames) {
  const auto selection = StreamSelection::parse("--redirects", "0:1,12:3");
  EXPECT_TRUE(selection.has(0, kStdout));
  EXPECT_FALSE(selection.has(0, kStderr));
  EXPECT_TRUE(selection.has(12, kStderr));
  EXPECT_FALSE(selection.has(1, kStdout));
  EXPECT_EQ(selection.max_rank(), 12);
}

TEST(StreamSelection, ErrorNamesTheFlagAndThePart) {
  for (const char* text :
       {"4", "-1", "x", "", "0:1,", "0:4", "0:", ":1", "0:1,2"}) {
    SCOPED_TRACE(text);
    EXPECT_THROW(StreamSelection::parse("--tee", text), LaunchError);
  }
  try {
    StreamSelection::parse("--tee", "0:1,1:9");
    FAIL();
  } catch (const LaunchError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--tee 0:1,1:9: got '1:9'"));
  }
}

} // namespace
} // namespace weft::launcher
