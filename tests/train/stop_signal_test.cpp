#include "train/stop_signal.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/config/fixtures.h"

namespace weft::train {
namespace {

using ::testing::ExitedWithCode;
using ::testing::StartsWith;

constexpr const char* kBefore =
    "^ERROR 143 rank=0 op=train SIGTERM before the first step: nothing was to "
    "be saved, and the same command starts again\n$";

class StopSignal : public ::testing::Test {
 protected:
  // Another test of this process may have trained.
  void SetUp() override { set_run_phase(RunPhase::kStarting); }
};

TEST_F(StopSignal, BeforeTheFirstStepItEndsTheProcess) {
  EXPECT_EXIT(
      {
        handle_stop_signals(0, "");
        raise(SIGTERM);
      },
      ExitedWithCode(143),
      kBefore);
  EXPECT_EXIT(
      {
        handle_stop_signals(3, "");
        raise(SIGUSR1);
      },
      ExitedWithCode(143),
      "^ERROR 143 rank=3 op=train SIGUSR1 before");
}

TEST_F(StopSignal, WhileTheRunTrainsItIsRemembered) {
  EXPECT_EXIT(
      {
        handle_stop_signals(0, "");
        set_run_phase(RunPhase::kTraining);
        const bool before = is_stop_requested();
        raise(SIGUSR1);
        raise(SIGTERM);
        raise(SIGUSR1);
        const bool is_right =
            !before && is_stop_requested() && stop_signal_name() == "SIGUSR1";
        _exit(is_right ? 7 : 1);
      },
      ExitedWithCode(7),
      "^$");
}

TEST_F(StopSignal, OnceAllIsSavedItEndsTheProcess) {
  for (const bool is_early : {true, false}) {
    EXPECT_EXIT(
        {
          handle_stop_signals(0, "");
          set_run_phase(RunPhase::kTraining);
          if (is_early) {
            raise(SIGTERM);
          }
          set_run_phase(RunPhase::kSaved);
          raise(SIGTERM);
        },
        ExitedWithCode(143),
        "^ERROR 143 rank=0 op=train SIGTERM after the last step, which is "
        "saved");
  }
}

TEST_F(StopSignal, LeavesTheLaunchersErrorFile) {
  const fixtures::TempFolder folder;
  EXPECT_EXIT(
      {
        handle_stop_signals(2, folder / "error.json");
        raise(SIGTERM);
      },
      ExitedWithCode(143),
      "");
  const auto file =
      nlohmann::json::parse(fixtures::read_text(folder / "error.json"));
  EXPECT_EQ(file["message"]["errorCode"], 143);
  EXPECT_EQ(file["message"]["extraInfo"]["rank"], "2");
  EXPECT_THAT(
      file["message"]["message"].get<std::string>(),
      StartsWith("SIGTERM before the first step"));
}

struct Ended {
  int code = 0;
  std::string said;
};

// A rank whose launcher, this process, sends it `signal`.
Ended told_by_its_launcher(int64_t rank) {
  std::array<int, 2> ready{};
  std::array<int, 2> error{};
  EXPECT_EQ(pipe(ready.data()), 0);
  EXPECT_EQ(pipe(error.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(error[1], STDERR_FILENO);
    handle_stop_signals(rank, "");
    if (write(ready[1], "", 1) == 1) {
      for (;;) {
        pause();
      }
    }
    _exit(1);
  }
  close(error[1]);
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  kill(child, SIGTERM);
  Ended ended;
  int status = 0;
  waitpid(child, &status, 0);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  std::array<char, 512> text;
  const auto size = read(error[0], text.data(), text.size());
  ended.said.assign(text.data(), static_cast<size_t>(size > 0 ? size : 0));
  for (const int fd : {ready[0], ready[1], error[0]}) {
    close(fd);
  }
  return ended;
}

TEST_F(StopSignal, OfRanksThatAreAllToldOnlyTheFirstSpeaks) {
  const auto first = told_by_its_launcher(0);
  EXPECT_EQ(first.code, 143);
  EXPECT_THAT(first.said, StartsWith("ERROR 143 rank=0 op=train SIGTERM"));
  const auto second = told_by_its_launcher(1);
  EXPECT_EQ(second.code, 143);
  EXPECT_EQ(second.said, "");
}

} // namespace
} // namespace weft::train
