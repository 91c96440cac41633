#include "base/log.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::base {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class Log : public ::testing::Test {
 protected:
  Logger logger(Logger::Options options) {
    options.write = [this](const std::string& line) { lines_.push_back(line); };
    return Logger(std::move(options));
  }

  std::vector<std::string> lines_;
};

TEST_F(Log, HasTimeLevelSourceAndText) {
  const auto log = logger({.source = rank_source(3)});
  log.info("saved step 2");
  log.warning("rank 1 is slow");
  EXPECT_THAT(
      lines_,
      ElementsAre(
          MatchesRegex("[0-9:]{8} INFO rank=3 saved step 2"),
          MatchesRegex("[0-9:]{8} WARNING rank=3 rank 1 is slow")));
}

TEST_F(Log, LeavesOutLinesBelowTheLevel) {
  const auto log = logger({.least = LogLevel::kWarning});
  log.debug("a");
  log.info("b");
  log.warning("c");
  log.error("d");
  EXPECT_THAT(
      lines_,
      ElementsAre(
          MatchesRegex("[0-9:]{8} WARNING c"),
          MatchesRegex("[0-9:]{8} ERROR d")));
}

TEST_F(Log, DropsAnEmptyText) {
  logger({}).warning("");
  Logger().error("there is no place to write to");
  EXPECT_THAT(lines_, ElementsAre());
}

TEST_F(Log, PrefixesTheFirstLineOnly) {
  logger({.source = "weftrun:"}).error("1 of 4 workers failed\n  rank 0");
  EXPECT_THAT(
      lines_,
      ElementsAre(
          HasSubstr(" ERROR weftrun: 1 of 4 workers failed\n  rank 0")));
}

TEST_F(Log, ColorsTheLevelOnly) {
  const auto log = logger({.is_colored = true});
  log.info("a");
  log.error("b");
  EXPECT_THAT(lines_[0], MatchesRegex("[0-9:]{8} INFO a"));
  EXPECT_THAT(lines_[1], HasSubstr(" \x1b[31mERROR\x1b[0m b"));
}

TEST_F(Log, ACopyCanHaveACondition) {
  bool leads = false;
  const auto log = logger({}).only_if([&] { return leads; });
  log.info("a");
  leads = true;
  log.info("b");
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("INFO b")));
}

TEST_F(Log, LevelsAreNamed) {
  for (const auto level :
       {LogLevel::kDebug,
        LogLevel::kInfo,
        LogLevel::kWarning,
        LogLevel::kError}) {
    EXPECT_EQ(log_level_of(to_string(level)), level);
  }
  EXPECT_EQ(log_level_of("loud"), std::nullopt);
  EXPECT_EQ(log_level_error("warning"), "");
  EXPECT_EQ(log_level_error(std::nullopt), "");
  EXPECT_EQ(
      log_level_error("loud"),
      "WEFT_LOG_LEVEL: got \"loud\", expected debug, info, warning or error");
}

} // namespace
} // namespace weft::base
