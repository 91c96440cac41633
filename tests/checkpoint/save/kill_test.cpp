// kill -9 at random moments of saves, and saves that delete what is being read:
// what is committed always loads, whole. crash_points_test.cpp has the moments
// one by one.

#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"
#include "checkpoint/store/store.h"
#include "checkpoint/verify.h"
#include "mesh/error/error.h"
#include "tests/support/temp_folder.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kKills = 100;
constexpr int64_t kKeep = 3;

// Step N holds tensors full of N, so that a mix of two steps shows.
StateDicts state_of(int64_t step) {
  StateDicts dicts;
  for (int i = 0; i < 8; ++i) {
    dicts["model"]["w" + std::to_string(i)] =
        at::full({64, 100 + i}, static_cast<double>(step), at::kDouble);
  }
  return dicts;
}

// What a run does between its start and its death.
[[noreturn]] void save_for_ever(const fs::path& folder) {
  const StoreLock lock(folder);
  remove_temporaries(folder);
  const auto steps = list_steps(folder);
  for (int64_t step = steps.empty() ? 1 : steps.front().step + 1;; ++step) {
    save(folder, state_of(step), {.step = step, .fsync = step % 4 == 0});
    prune_steps(folder, kKeep);
  }
}

void expect_sound(const fs::path& folder, int64_t step) {
  auto dicts = state_of(0);
  load(folder, dicts);
  for (const auto& [name, tensor] : dicts.at("model")) {
    ASSERT_TRUE(tensor.eq(static_cast<double>(step)).all().item<bool>())
        << folder << " " << name;
  }
}

bool is_saving(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(".tmp-")) {
      return true;
    }
  }
  return false;
}

TEST(KilledSaves, WhatIsCommittedAlwaysLoads) {
  const test::TempFolder temp;
  const auto& folder = temp.path();
  std::mt19937 random(20261121);
  // A save takes some 3 ms; these land all over one or the next.
  std::uniform_int_distribution<int> microseconds(0, 5'000);
  int64_t newest = 0;
  int torn = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      save_for_ever(folder);
    }
    // A save of its own is under way, and there is something to lose.
    while (!is_saving(folder) || (newest == 0 && list_steps(folder).empty())) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(
        std::chrono::microseconds(microseconds(random)));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "a save failed by itself";

    const auto steps = list_steps(folder);
    ASSERT_FALSE(steps.empty());
    ASSERT_GE(steps.front().step, newest) << "a committed step was lost";
    newest = steps.front().step;
    for (const auto& step : steps) {
      ASSERT_NO_FATAL_FAILURE(expect_sound(step.path, step.step));
    }
    torn += remove_temporaries(folder) > 0 ? 1 : 0;
    ASSERT_FALSE(is_saving(folder));
  }
  EXPECT_GT(torn, kKills / 10) << "too few kills met a save half done";
  EXPECT_GT(newest, 1) << "no save came to its end";
  for (const auto& step : list_steps(folder)) {
    EXPECT_THAT(verify(step.path), ::testing::IsEmpty());
  }
}

// Another process keeps the newest step only, and saves the next one at once.
TEST(ReadersAndWriters, AStepIsReadWholeOrSaidToBeGone) {
  constexpr int kReads = 300;
  constexpr size_t kSteps = 10; // others are deleted meanwhile
  const test::TempFolder temp;
  const auto& folder = temp.path();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const StoreLock lock(folder);
    for (int64_t step = 1;; ++step) {
      save(folder, state_of(step), {.step = step, .fsync = false});
      prune_steps(folder, 1);
    }
  }
  int read = 0;
  int gone = 0;
  std::set<int64_t> seen;
  while (read < kReads || seen.size() < kSteps) {
    const auto steps = list_steps(folder);
    if (steps.empty()) {
      std::this_thread::yield();
      continue;
    }
    // The oldest is the next to be deleted, but for a pin on it.
    const auto& [step, path] = read % 2 == 0 ? steps.front() : steps.back();
    std::optional<StepPin> pin;
    try {
      pin.emplace(path);
    } catch (const c10::Error&) {
      ++gone;
      continue;
    }
    EXPECT_NO_FATAL_FAILURE(expect_sound(path, step));
    ++read;
    seen.insert(step);
  }
  EXPECT_THROW(StoreLock{folder}, mesh::UsageError) << "a second writer";
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the writer failed";
  std::cout << read << " reads of " << seen.size() << " steps; " << gone
            << " were gone\n";
}

} // namespace
} // namespace weft::checkpoint
