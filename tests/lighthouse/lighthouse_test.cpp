#include "lighthouse/lighthouse.h"

#include <map>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lighthouse/member.h"

namespace weft::lighthouse {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Phase = Member::Phase;

/// Groups and a lighthouse whose messages arrive at once. Groups in one epoch
/// train in step.
class Training {
 public:
  explicit Training(int64_t groups, LighthouseOptions options = {}) {
    options.expected_groups = groups;
    options.is_first_start = true;
    lease_ = options.lease;
    lighthouse_.emplace(options, ballot_, now_);
    for (int64_t i = 0; i < groups; ++i) {
      start_group();
    }
  }

  GroupId start_group() {
    const GroupId id = members_.size() + 1;
    members_.emplace(id, Member(id, lease_, now_));
    return id;
  }
  Member& member(GroupId id) { return members_.at(id); }
  Lighthouse& lighthouse() { return *lighthouse_; }
  Time now() const { return now_; }
  /// What groups say from now on.
  void want(int64_t min_groups, Time join_timeout) {
    min_groups_ = min_groups;
    join_timeout_ = join_timeout;
  }
  void stop() { is_stopping_ = true; }
  /// Time in which nobody runs.
  void wait(Time time) { now_ += time; }
  /// Time in which all that can be heard report.
  void run_for(Time time) {
    constexpr auto kPause = milliseconds(100);
    for (Time passed{0}; passed < time; passed += kPause) {
      wait(kPause);
      exchange();
    }
  }

  /// The process has ended, as its supervisor says.
  void end(GroupId id) {
    gone_.insert(id);
    lighthouse_->lose(id);
  }
  /// Nothing comes from the group or reaches it, until hear() is called.
  void silence(GroupId id) { gone_.insert(id); }
  void hear(GroupId id) { gone_.erase(id); }

  void restart_lighthouse() {
    LighthouseOptions options;
    options.lease = lease_;
    lighthouse_.emplace(options, ++ballot_, now_);
  }

  /// Reports and replies until nothing changes, with pauses of 1 ms.
  void settle() {
    for (int i = 0; i < 20; ++i) {
      wait(milliseconds(1));
      exchange();
    }
  }

  /// One step of every epoch whose groups are all training.
  void step() {
    for (auto& [id, member] : members_) {
      if (!gone_.contains(id) && member.phase() == Phase::kTraining) {
        member.prepare();
        ASSERT_TRUE(member.commit(now_));
      }
    }
  }

  std::vector<GroupId> epoch_members() const {
    return lighthouse_->epoch() ? lighthouse_->epoch()->members
                                : std::vector<GroupId>();
  }

 private:
  void exchange() {
    for (auto& [id, member] : members_) {
      if (!gone_.contains(id)) {
        auto report = member.report(now_);
        report.min_groups = min_groups_;
        report.join_timeout = join_timeout_;
        report.is_stopping = is_stopping_;
        lighthouse_->receive(report, now_);
        lighthouse_->update(now_);
        member.receive(lighthouse_->reply(id, now_), now_);
      }
    }
    meet();
  }

  // Groups that have accepted the same epoch meet, and those with its state
  // give it to the others.
  void meet() {
    for (auto& [id, member] : members_) {
      const auto& epoch = member.epoch();
      if (gone_.contains(id) || member.phase() != Phase::kMeeting) {
        continue;
      }
      bool all_there = true;
      for (const GroupId other : epoch.members) {
        all_there = all_there && !gone_.contains(other) &&
                    members_.at(other).epoch().number == epoch.number;
      }
      bool applies = false;
      if (all_there && member.enter(now_, applies) &&
          member.phase() == Phase::kWithoutState) {
        member.take_state();
      }
    }
  }

  Time now_ = seconds(100);
  int64_t min_groups_ = 1;
  Time join_timeout_{0};
  bool is_stopping_ = false;
  Time lease_{0};
  uint64_t ballot_ = 1;
  std::optional<Lighthouse> lighthouse_;
  std::map<GroupId, Member> members_;
  std::set<GroupId> gone_;
};

TEST(Lighthouse, TheFirstEpochWaitsForTheExpectedGroups) {
  LighthouseOptions options;
  options.is_first_start = true;
  options.expected_groups = 2;
  options.join_timeout = seconds(5);
  Lighthouse lighthouse(options, 1, Time(0));
  Member member(7, options.lease, Time(0));
  const auto report = [&](Time now) {
    member.receive(lighthouse.reply(7, now), now);
    lighthouse.receive(member.report(now), now);
    lighthouse.update(now);
  };
  lighthouse.receive(member.report(Time(0)), Time(0));
  const auto report_until = [&](Time from, Time end) {
    for (Time now = from; now <= end; now += milliseconds(250)) {
      report(now);
    }
  };
  report_until(milliseconds(1), seconds(4));
  EXPECT_FALSE(lighthouse.epoch());
  report_until(seconds(4), seconds(6));
  ASSERT_TRUE(lighthouse.epoch());
  EXPECT_THAT(lighthouse.epoch()->members, ElementsAre(7));
  EXPECT_EQ(member.epoch().number, lighthouse.epoch()->number);
}

TEST(Lighthouse, TheOthersGoOnWithoutALostGroup) {
  Training run(3);
  run.settle();
  run.step();
  const auto before = run.member(1).applied();
  run.end(2);
  run.settle();
  EXPECT_THAT(run.epoch_members(), UnorderedElementsAre(1, 3));
  EXPECT_EQ(run.member(1).phase(), Phase::kTraining);
  EXPECT_EQ(run.member(1).applied(), before);
  EXPECT_EQ(run.member(3).applied(), before);
  run.step();
  EXPECT_EQ(run.member(1).applied().step, 2);
  EXPECT_EQ(run.member(1).applied(), run.member(3).applied());
}

TEST(Lighthouse, AStepThatOneGroupAppliedIsAppliedByAll) {
  Training run(3);
  run.settle();
  for (const GroupId id : {1, 2, 3}) {
    run.member(id).prepare();
  }
  run.member(1).commit(run.now());
  run.end(2);
  run.settle();
  EXPECT_EQ(run.member(3).applied().step, 1);
  EXPECT_EQ(run.member(3).applied(), run.member(1).applied());
}

TEST(Lighthouse, AStepForWhichAllAreThereIsPreparedIsApplied) {
  // The lost one may have applied it.
  Training run(3);
  run.settle();
  for (const GroupId id : {1, 2, 3}) {
    run.member(id).prepare();
  }
  run.end(2);
  run.settle();
  EXPECT_EQ(run.member(1).applied().step, 1);
  EXPECT_EQ(run.member(3).applied(), run.member(1).applied());
}

TEST(Lighthouse, AStepForWhichOneIsNotPreparedIsDoneAgain) {
  Training run(3);
  run.settle();
  const auto dropped = run.member(1).prepare();
  run.end(2);
  run.settle();
  EXPECT_EQ(run.member(1).applied().step, 0);
  EXPECT_EQ(run.member(1).phase(), Phase::kTraining);
  run.step();
  EXPECT_EQ(run.member(1).applied().step, 1);
  EXPECT_NE(run.member(1).applied(), dropped);
}

TEST(Lighthouse, ANewcomerEntersAfterTheStepAndGetsTheState) {
  Training run(2);
  run.settle();
  run.step();
  const auto newcomer = run.start_group();
  run.settle();
  EXPECT_TRUE(run.member(1).leaves_after_step());
  EXPECT_EQ(run.member(1).phase(), Phase::kTraining);
  run.step();
  run.member(1).leave();
  run.member(2).leave();
  run.settle();
  EXPECT_THAT(run.epoch_members(), UnorderedElementsAre(1, 2, newcomer));
  EXPECT_EQ(run.member(newcomer).applied().step, 2);
  EXPECT_EQ(run.member(newcomer).applied(), run.member(1).applied());
}

TEST(Lighthouse, ALighthouseThatStartsAgainDisturbsNoGroup) {
  Training run(3);
  run.settle();
  run.step();
  const auto epoch = run.member(1).epoch().number;
  run.wait(seconds(5));
  run.restart_lighthouse();
  run.settle();
  ASSERT_TRUE(run.lighthouse().epoch());
  EXPECT_EQ(run.lighthouse().epoch()->number, epoch);
  EXPECT_EQ(run.member(1).phase(), Phase::kTraining);
  EXPECT_EQ(run.lighthouse().acknowledged(), run.member(1).applied());
}

// The groups have sent what it could not read.
TEST(Lighthouse, ALighthouseThatWasStoppedDisturbsNoGroup) {
  Training run(3);
  run.settle();
  run.wait(seconds(6));
  run.lighthouse().update(run.now());
  for (const GroupId id : {1, 2, 3}) {
    EXPECT_EQ(
        run.lighthouse().reply(id, run.now()).directive, Directive::kContinue);
  }
  const auto number = run.member(1).epoch().number;
  run.settle();
  EXPECT_EQ(run.member(1).epoch().number, number);
  EXPECT_EQ(run.member(1).phase(), Phase::kTraining);
  // It notices those that stay silent.
  run.silence(3);
  run.run_for(seconds(2));
  run.settle();
  EXPECT_THAT(run.epoch_members(), UnorderedElementsAre(1, 2));
}

TEST(Lighthouse, ALighthouseThatStartsAgainNeedsMoreThanHalf) {
  Training run(4);
  run.settle();
  run.silence(3);
  run.silence(4);
  run.restart_lighthouse();
  run.settle();
  EXPECT_FALSE(run.lighthouse().epoch());
  run.hear(3);
  run.settle();
  ASSERT_TRUE(run.lighthouse().epoch());
  // Group 4 is suspected a second later.
  run.run_for(milliseconds(900));
  run.settle();
  run.run_for(milliseconds(500));
  run.settle();
  EXPECT_THAT(run.epoch_members(), UnorderedElementsAre(1, 2, 3));
}

TEST(Lighthouse, GroupsWithoutAnswerForTheLeaseDoNotCountForAMajority) {
  Training run(2);
  run.settle();
  run.step();
  const auto before = run.member(1).applied();
  run.wait(seconds(40));
  EXPECT_FALSE([&] {
    run.member(1).prepare();
    return run.member(1).commit(run.now());
  }());
  run.restart_lighthouse();
  run.settle();
  EXPECT_FALSE(run.lighthouse().epoch());
  // Any group that might have gone on elsewhere is held by then.
  run.run_for(seconds(32));
  run.settle();
  ASSERT_TRUE(run.lighthouse().epoch());
  EXPECT_EQ(run.lighthouse().epoch()->base, before);
  EXPECT_EQ(
      run.lighthouse().epoch()->generation, run.lighthouse().epoch()->number);
}

TEST(Lighthouse, AMinorityNamesTheGroupsToEnd) {
  Training run(2);
  run.settle();
  run.step();
  run.silence(2);
  run.run_for(seconds(2));
  run.settle();
  EXPECT_THAT(run.epoch_members(), UnorderedElementsAre(1, 2));
  EXPECT_THAT(run.lighthouse().groups_to_end(), IsEmpty()); // Not yet.
  run.run_for(seconds(4));
  run.settle();
  EXPECT_THAT(run.lighthouse().groups_to_end(), ElementsAre(2));
  run.end(2);
  run.settle();
  EXPECT_THAT(run.epoch_members(), ElementsAre(1));
  EXPECT_THAT(run.lighthouse().groups_to_end(), IsEmpty());
  EXPECT_EQ(run.member(1).applied().step, 1);
}

TEST(Lighthouse, AGroupThatWasStoppedGetsTheStateOfTheOthers) {
  Training run(3);
  run.settle();
  run.step();
  run.silence(2);
  run.run_for(seconds(2));
  run.settle();
  run.step();
  run.step();
  EXPECT_EQ(run.member(1).applied().step, 3);
  // It comes back in the middle of its step, which is over.
  run.member(2).prepare();
  run.hear(2);
  run.settle();
  EXPECT_NE(run.member(2).phase(), Phase::kTraining);
  run.member(1).leave();
  run.member(3).leave();
  run.settle();
  EXPECT_EQ(run.member(2).phase(), Phase::kTraining);
  EXPECT_EQ(run.member(2).applied(), run.member(1).applied());
}

TEST(Lighthouse, WithoutAnyGroupThatHasTheStateItBeginsFromACheckpoint) {
  Training run(2);
  run.settle();
  run.step();
  run.end(1);
  run.end(2);
  const auto newcomer = run.start_group();
  run.settle();
  ASSERT_TRUE(run.lighthouse().epoch());
  EXPECT_THAT(run.epoch_members(), ElementsAre(newcomer));
  EXPECT_FALSE(run.lighthouse().epoch()->base);
}

TEST(Lighthouse, NothingBeginsAgainAfterAGroupHasFinished) {
  Training run(2);
  run.settle();
  run.step();
  run.member(1).finish();
  run.settle();
  EXPECT_THAT(run.epoch_members(), ElementsAre(2)); // It has its last steps.
  run.end(2);
  const auto newcomer = run.start_group();
  run.settle();
  EXPECT_EQ(run.member(newcomer).phase(), Phase::kOutside);
  EXPECT_THAT(run.lighthouse().groups_to_end(), ElementsAre(newcomer));
}

TEST(Lighthouse, FewerGroupsThanAskedForWait) {
  LighthouseOptions options;
  options.min_groups = 2;
  Training run(2, options);
  run.settle();
  run.end(2);
  run.settle();
  EXPECT_EQ(run.member(1).phase(), Phase::kOutside);
  const auto newcomer = run.start_group();
  run.settle();
  EXPECT_THAT(run.epoch_members(), UnorderedElementsAre(1, newcomer));
  EXPECT_EQ(run.member(1).phase(), Phase::kTraining);
}

TEST(Lighthouse, FewerGroupsThanTheyWantWaitForSomeTime) {
  Training run(3);
  run.want(2, seconds(10));
  run.settle();
  run.end(3);
  run.settle();
  EXPECT_EQ(run.member(1).phase(), Phase::kTraining);
  run.end(2);
  run.settle();
  EXPECT_EQ(run.member(1).phase(), Phase::kOutside);
  run.run_for(seconds(9));
  run.settle();
  EXPECT_EQ(run.member(1).phase(), Phase::kOutside);
  run.run_for(seconds(1));
  run.settle();
  EXPECT_THAT(run.epoch_members(), ElementsAre(1)); // to save and end
  // The time begins again.
  const auto newcomer = run.start_group();
  run.member(1).leave();
  run.settle();
  EXPECT_THAT(run.epoch_members(), UnorderedElementsAre(1, newcomer));
  run.end(newcomer);
  run.run_for(seconds(9));
  run.settle();
  EXPECT_EQ(run.member(1).phase(), Phase::kOutside);
  // A signal ends the wait.
  run.stop();
  run.settle();
  EXPECT_EQ(run.member(1).phase(), Phase::kTraining);
}

TEST(Lighthouse, FewerGroupsThanTheyWantWaitOnIfTheyHaveNothingToSave) {
  Training run(2);
  run.want(2, seconds(10));
  run.settle();
  run.end(1);
  run.end(2);
  const auto first = run.start_group();
  run.run_for(seconds(1000));
  run.settle();
  EXPECT_EQ(run.member(first).phase(), Phase::kOutside);
  const auto second = run.start_group();
  run.settle();
  EXPECT_THAT(run.epoch_members(), UnorderedElementsAre(first, second));
}

TEST(Lighthouse, OneThatDoesNotRespondIsEndedWhileTooFewWait) {
  Training run(2);
  run.want(2, seconds(60));
  run.settle();
  run.silence(2);
  run.run_for(seconds(6));
  run.settle();
  EXPECT_EQ(run.member(1).phase(), Phase::kOutside);
  EXPECT_THAT(run.lighthouse().groups_to_end(), ElementsAre(2));
  run.end(2);
  const auto newcomer = run.start_group();
  run.settle();
  EXPECT_THAT(run.epoch_members(), UnorderedElementsAre(1, newcomer));
  EXPECT_THAT(run.lighthouse().groups_to_end(), IsEmpty());
}

TEST(Lighthouse, TheEndOfTheLastStepNeedsNoOtherGroups) {
  Training run(2);
  run.want(2, seconds(10));
  run.settle();
  run.step();
  run.member(1).finish();
  run.settle();
  EXPECT_THAT(run.epoch_members(), ElementsAre(2));
}

TEST(Lighthouse, AGroupFollowsTheNewestLighthouseOnly) {
  Member member(1, seconds(30), Time(0));
  Reply newer;
  newer.ballot = 5;
  member.receive(newer, Time(0));
  Reply older;
  older.ballot = 4;
  older.directive = Directive::kEnter;
  older.epoch = {{4, 1}, {4, 1}, {1}, {}};
  member.receive(older, Time(0));
  EXPECT_EQ(member.phase(), Phase::kOutside);
  older.ballot = 5;
  member.receive(older, Time(0));
  EXPECT_EQ(member.phase(), Phase::kMeeting);
}

} // namespace
} // namespace weft::lighthouse
