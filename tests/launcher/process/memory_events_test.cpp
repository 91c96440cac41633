#include "launcher/process/memory_events.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {
namespace {

namespace fs = std::filesystem;

class MemoryEvents : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  /// A host where process 7 belongs to /job/step.
  void version_1() {
    write("proc/7/cgroup", "5:cpu,cpuacct:/x\n4:memory:/job/step\n0::/\n");
    write(
        "proc/self/mountinfo",
        "34 31 0:31 / /cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / " +
            (folder_ / "memory").string() +
            " rw,relatime shared:4 - cgroup cgroup rw,memory\n");
    write("memory/memory.limit_in_bytes", "9223372036854771712\n");
    write("memory/job/memory.limit_in_bytes", "1000\n");
    write("memory/job/step/memory.limit_in_bytes", "9223372036854771712\n");
    write(
        "memory/job/step/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  }
  void version_2(const std::string& root) {
    write("proc/7/cgroup", "0::/job/step\n");
    write(
        "proc/self/mountinfo",
        "41 31 0:38 " + root + " " + (folder_ / "all").string() +
            " rw - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  auto cgroup() { return memory_cgroup(7, folder_ / "proc"); }

  test::TempFolder folder_;
};

TEST_F(MemoryEvents, ReadsVersion1) {
  version_1();
  const auto found = cgroup();
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->is_v2);
  EXPECT_EQ(oom_kills(*found), 3);
  EXPECT_EQ(memory_limit(*found), 1000);
}

TEST_F(MemoryEvents, ReadsVersion2) {
  version_2("/");
  write("all/job/step/memory.events", "low 0\noom 1\noom_kill 2\n");
  write("all/job/step/memory.max", "4096\n");
  write("all/job/memory.max", "max\n");
  const auto found = cgroup();
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->is_v2);
  EXPECT_EQ(oom_kills(*found), 2);
  EXPECT_EQ(memory_limit(*found), 4096);
}

TEST_F(MemoryEvents, AContainerSeesAPartOfTheTree) {
  version_2("/job");
  write("all/step/memory.events", "oom_kill 9\n");
  write("all/step/memory.max", "max\n");
  const auto found = cgroup();
  ASSERT_TRUE(found);
  EXPECT_EQ(oom_kills(*found), 9);
  EXPECT_EQ(memory_limit(*found), std::nullopt);
}

TEST_F(MemoryEvents, WhatIsNotThereIsNotMadeUp) {
  EXPECT_FALSE(cgroup());
  EXPECT_EQ(host_oom_kills(folder_ / "proc"), std::nullopt);
  version_2("/"); // the root has no counters
  EXPECT_FALSE(cgroup());
  write("proc/vmstat", "oom_killer 4\noom_kill 5\n");
  EXPECT_EQ(host_oom_kills(folder_ / "proc"), 5);
}

TEST_F(MemoryEvents, KnowsTheKernelsWords) {
  const char* line =
      "3,1234,99,-;Memory cgroup out of memory: Killed process 165 (python3) "
      "total-vm:68392kB, anon-rss:58276kB";
  EXPECT_TRUE(is_oom_kill(line, 165));
  EXPECT_FALSE(is_oom_kill(line, 16));
  EXPECT_TRUE(is_oom_kill("3,1,2,-;Out of memory: Killed process 9 (weft)", 9));
  write("kmsg", "");
  KernelLog log(folder_ / "kmsg");
  EXPECT_FALSE(log.reports_oom_kill(165));
  write("kmsg", std::string("6,1,2,-;other\n") + line + "\n");
  EXPECT_TRUE(log.reports_oom_kill(165));
  EXPECT_FALSE(KernelLog(folder_ / "absent").reports_oom_kill(165));
}

} // namespace
} // namespace weft::launcher
