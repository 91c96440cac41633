#include "mesh/watchdog/hang_diagnosis.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/communicator/format.h"
#include "mesh/watchdog/rank_status.h"
#include "mesh/watchdog/waits.h"

namespace weft::mesh {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 100 * kSecond;

FlightRecorderEntry barrier(uint64_t sequence, bool is_waited_for) {
  FlightRecorderEntry entry;
  entry.sequence = sequence;
  entry.op = "barrier";
  entry.start_ns = kNow - 20 * kSecond;
  entry.end_ns = is_waited_for ? 0 : entry.start_ns + 1;
  entry.wait_ns = is_waited_for ? kNow - 20 * kSecond : 0;
  return entry;
}

/// A rank's view of a group in which it has called `entries`.
GroupStatus group(
    std::string key,
    std::vector<int64_t> ranks,
    std::vector<FlightRecorderEntry> entries) {
  GroupStatus status;
  status.name = key;
  status.key = std::move(key);
  status.ranks = std::move(ranks);
  status.next_sequence = entries.empty() ? 0 : entries.back().sequence + 1;
  status.entries = std::move(entries);
  return status;
}

RankReply answer(int64_t rank, std::vector<GroupStatus> groups) {
  RankReply result;
  result.has_reply = true;
  result.status.rank = rank;
  result.status.now_ns = kNow;
  result.status.groups = std::move(groups);
  return result;
}

TEST(HangDiagnosis, FindsACycleOfThreeRanks) {
  const std::vector<RankReply> answers{
      answer(
          0, {group("a", {0, 1}, {barrier(0, true)}), group("c", {0, 2}, {})}),
      answer(
          1, {group("a", {0, 1}, {}), group("b", {1, 2}, {barrier(0, true)})}),
      answer(
          2, {group("b", {1, 2}, {}), group("c", {0, 2}, {barrier(0, true)})})};
  const auto diagnosis = find_deadlock_cycle(answers);
  ASSERT_TRUE(diagnosis);
  EXPECT_THAT(
      diagnosis->sentence,
      HasSubstr("rank 0 in barrier #0 of group \"a\" for rank 1, rank 1 in "
                "barrier #0 of group \"b\" for rank 2, rank 2 in barrier #0 of "
                "group \"c\" for rank 0"));
  EXPECT_FALSE(find_mismatch(answers));
}

// All have called it: it is under way, however long it takes.
TEST(HangDiagnosis, IgnoresAMessageInFlight) {
  const std::vector<RankReply> answers{
      answer(0, {group("a", {0, 1}, {barrier(3, true)})}),
      answer(1, {group("a", {0, 1}, {barrier(3, true)})})};
  EXPECT_FALSE(find_deadlock_cycle(answers));
  EXPECT_FALSE(find_ended(answers));
  EXPECT_EQ(describe_wait(answers, 0), "");
}

TEST(HangDiagnosis, ARankThatComputesIsLate) {
  auto late = answer(2, {group("w", {0, 1, 2}, {barrier(6, false)})});
  late.status.activity = "forward of step 12";
  const std::vector<RankReply> answers{
      answer(0, {group("w", {0, 1, 2}, {barrier(7, true)})}),
      answer(1, {group("w", {0, 1, 2}, {barrier(7, true)})}),
      late};
  EXPECT_FALSE(find_deadlock_cycle(answers));
  EXPECT_EQ(
      describe_wait(answers, 0),
      "ranks 0 and 1 have waited 20 s in barrier #7 of group \"w\" for rank 2; "
      "rank 2 is in forward of step 12, and was last at barrier #6");
  EXPECT_EQ(late_ranks(answers, 1), std::vector<int64_t>{2});
  EXPECT_TRUE(wait_in_same_call(answers, 0, 1));
  EXPECT_FALSE(wait_in_same_call(answers, 0, 2));
}

TEST(HangDiagnosis, ARankThatDoesNotAnswerIsNamed) {
  RankReply silent;
  silent.status.rank = 1;
  silent.absence_reason = "process 12 is stopped (SIGSTOP)";
  const std::vector<RankReply> answers{
      answer(0, {group("w", {0, 1}, {barrier(7, true)})}), silent};
  EXPECT_THAT(
      describe_wait(answers, 0),
      AllOf(
          HasSubstr("rank 0 has waited 20 s"),
          HasSubstr(
              "rank 1 is not responding (process 12 is stopped (SIGSTOP))")));
  EXPECT_TRUE(late_ranks(answers, 0).empty());
}

// A collective that failed on a device: no thread waits.
TEST(HangDiagnosis, AfterAFailureWhoIsBehindIsNamed) {
  RankReply silent;
  silent.status.rank = 2;
  silent.absence_reason = "process 12 is stopped (SIGSTOP)";
  auto late = answer(1, {group("w", {0, 1, 2}, {barrier(6, false)})});
  late.status.activity = "forward of step 12";
  std::vector<RankReply> answers{
      answer(0, {group("w", {0, 1, 2}, {barrier(7, false)})}), late, silent};
  EXPECT_EQ(describe_wait(answers, 0), "");
  EXPECT_EQ(
      describe_behind(answers, 0),
      "rank 2 is not responding (process 12 is stopped (SIGSTOP))");
  answers[2] = answer(2, {group("w", {0, 1, 2}, {barrier(7, false)})});
  EXPECT_EQ(
      describe_behind(answers, 0),
      "rank 1 is in forward of step 12, and was last at barrier #6 of group "
      "\"w\"");
  answers[1] = answers[2];
  EXPECT_EQ(describe_behind(answers, 0), "");
}

// Rank 0 waits for 1, which waits for 2.
TEST(HangDiagnosis, ChainsAreFollowedToTheirEnd) {
  RankReply silent;
  silent.status.rank = 2;
  const std::vector<RankReply> answers{
      answer(0, {group("a", {0, 1}, {barrier(0, true)})}),
      answer(
          1, {group("a", {0, 1}, {}), group("b", {1, 2}, {barrier(4, true)})}),
      silent};
  EXPECT_EQ(
      describe_wait(answers, 0),
      "rank 0 has waited 20 s in barrier #0 of group \"a\" for rank 1; rank 1 "
      "waits in barrier #4 of group \"b\" for rank 2; rank 2 is not "
      "responding");
}

TEST(HangDiagnosis, ARankThatHasEndedIsNotWaitedFor) {
  auto ended = answer(1, {group("w", {0, 1}, {barrier(6, false)})});
  ended.status.has_ended = true;
  const std::vector<RankReply> answers{
      answer(0, {group("w", {0, 1}, {barrier(7, true)})}), ended};
  const auto diagnosis = find_ended(answers);
  ASSERT_TRUE(diagnosis);
  EXPECT_THAT(
      diagnosis->sentence,
      HasSubstr("Rank 1 has ended, but rank 0 waits for it in barrier #7"));
}

TEST(HangDiagnosis, TheMajorityIsRight) {
  std::vector<RankReply> answers;
  for (int64_t rank = 0; rank < 4; ++rank) {
    auto call = barrier(2, true);
    call.op = "all_reduce";
    call.name = rank == 0 ? "wk" : "wq";
    call.identity = rank == 0 ? 5 : 6;
    answers.push_back(answer(rank, {group("w", {0, 1, 2, 3}, {call})}));
  }
  const auto diagnosis = find_mismatch(answers);
  ASSERT_TRUE(diagnosis);
  EXPECT_THAT(
      diagnosis->sentence,
      HasSubstr("rank 0 calls all_reduce #2 (\"wk\" [] Float, 0 bytes), ranks "
                "1 to 3 call all_reduce #2 (\"wq\""));
}

TEST(RankStatus, IsTheSameAfterTheStore) {
  auto call = barrier(2, true);
  call.name = "na\"me\n";
  call.shape = {2, 3};
  call.parts = {1, 2};
  auto status = answer(1, {group("w", {0, 1}, {call})}).status;
  status.activity = "data of step 3";
  EXPECT_EQ(to_text(parse_rank_status(to_text(status))), to_text(status));
  EXPECT_EQ(
      parse_rank_status(to_text(status)).groups[0].entries[0].name, call.name);
}

TEST(RanksText, IsShort) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({0, 1}), "ranks 0 and 1");
  EXPECT_EQ(ranks_text({0, 1, 2}), "ranks 0 to 2");
  EXPECT_EQ(ranks_text({0, 2, 5}), "ranks 0, 2 and 5");
}

} // namespace
} // namespace weft::mesh
