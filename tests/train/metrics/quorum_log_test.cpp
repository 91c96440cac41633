#include "train/metrics/quorum_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/config/fixtures.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

QuorumEntry entry_of(uint64_t lighthouse, int64_t epoch) {
  QuorumEntry entry;
  entry.quorum.lighthouse = lighthouse;
  entry.quorum.epoch = epoch;
  entry.quorum.step = 10 * epoch;
  entry.quorum.groups = {0, 2};
  entry.quorum.lives = {1, 3};
  entry.time = 1e9 + 0.25;
  return entry;
}

std::vector<int64_t> epochs_in(const std::string& path) {
  std::vector<int64_t> result;
  for (const auto& entry : QuorumHistory::read(path).entries) {
    result.push_back(entry.quorum.epoch);
  }
  return result;
}

TEST(QuorumLog, LinesReadBack) {
  const fixtures::TempFolder folder;
  const std::string path = folder / "quorum.jsonl";
  auto entry = entry_of(~uint64_t{0}, 3);
  entry.quorum.lost = {{.group = 1, .why = "SIGKILL"}, {.group = 4, .why = ""}};
  entry.quorum.joined = {2};
  entry.quorum.reconfigure_ms = 7.1254;
  entry.quorum.steps_redone = 1;
  entry.quorum.state_bytes = int64_t{1} << 40;
  entry.quorum.state_ms = 12.5;
  EXPECT_EQ(QuorumLog(path, true).write({entry}), "");
  const auto history = QuorumHistory::read(path);
  ASSERT_EQ(history.entries.size(), 1U);
  EXPECT_EQ(history.unreadable, 0);
  EXPECT_EQ(history.entries[0].time, entry.time);
  const auto& quorum = history.entries[0].quorum;
  EXPECT_EQ(quorum.lighthouse, entry.quorum.lighthouse);
  EXPECT_EQ(quorum.step, 30);
  EXPECT_THAT(quorum.groups, ElementsAre(0, 2));
  EXPECT_THAT(quorum.lives, ElementsAre(1, 3));
  EXPECT_THAT(quorum.joined, ElementsAre(2));
  ASSERT_EQ(quorum.lost.size(), 2U);
  EXPECT_EQ(quorum.lost[0].group, 1);
  EXPECT_EQ(quorum.lost[0].why, "SIGKILL");
  EXPECT_EQ(quorum.reconfigure_ms, 7.125);
  EXPECT_EQ(quorum.steps_redone, 1);
  EXPECT_EQ(quorum.state_bytes, entry.quorum.state_bytes);
  EXPECT_EQ(quorum.state_ms, 12.5);
}

// A group that goes on writing has entries of its own for the same epochs.
TEST(QuorumLog, WritesWhatAnotherGroupHasNotWritten) {
  const fixtures::TempFolder folder;
  const std::string path = folder / "quorum.jsonl";
  QuorumLog(path, true).write({entry_of(5, 1), entry_of(5, 2)});
  QuorumLog next(path, false);
  next.write({entry_of(5, 1), entry_of(5, 2), entry_of(5, 4)});
  EXPECT_THAT(epochs_in(path), ElementsAre(1, 2, 4));
  // A later start of weftrun counts from 1.
  QuorumLog(path, false).write({entry_of(6, 1)});
  EXPECT_THAT(epochs_in(path), ElementsAre(1, 2, 4, 1));
}

TEST(QuorumLog, TellsWhoWasLostSinceTheLineBefore) {
  const fixtures::TempFolder folder;
  const std::string path = folder / "quorum.jsonl";
  QuorumLog(path, true).write({entry_of(5, 1)});
  // All are new lives, of which none knows the groups before.
  auto entry = entry_of(5, 2);
  entry.quorum.lives = {4, 5};
  entry.quorum.joined = {0, 2};
  QuorumLog log(path, false);
  log.write({entry});
  entry = entry_of(5, 3);
  entry.quorum.lives = {4, 6};
  entry.quorum.joined = {0, 2}; // by one that has begun with this epoch
  entry.quorum.lost = {{.group = 2, .why = "SIGKILL"}};
  log.write({entry});
  const auto entries = QuorumHistory::read(path).entries;
  ASSERT_EQ(entries.size(), 3U);
  ASSERT_EQ(entries[1].quorum.lost.size(), 2U);
  EXPECT_EQ(entries[1].quorum.lost[1].group, 2);
  EXPECT_EQ(entries[1].quorum.lost[1].why, "");
  EXPECT_THAT(entries[1].quorum.joined, ElementsAre(0, 2));
  ASSERT_EQ(entries[2].quorum.lost.size(), 1U);
  EXPECT_EQ(entries[2].quorum.lost[0].why, "SIGKILL");
  EXPECT_THAT(entries[2].quorum.joined, ElementsAre(2));
}

TEST(QuorumLog, ANewRunBeginsANewFile) {
  const fixtures::TempFolder folder;
  const std::string path = folder / "quorum.jsonl";
  QuorumLog(path, true).write({entry_of(5, 1)});
  const QuorumLog log(path, true);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THAT(epochs_in(path), IsEmpty());
}

TEST(QuorumLog, CountsLinesThatCannotBeRead) {
  const fixtures::TempFolder folder;
  const std::string path = folder / "quorum.jsonl";
  folder.write(
      "quorum.jsonl",
      "no JSON\n{\"epoch\": 1}\n[]\n" + quorum_line(entry_of(5, 7)) +
          "\n{\"epoch\": 8, \"st");
  EXPECT_THAT(epochs_in(path), ElementsAre(7));
  EXPECT_EQ(QuorumHistory::read(path).unreadable, 4);
}

} // namespace
} // namespace weft::train
