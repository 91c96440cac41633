#include "base/usable_cores.h"
#include "tests/support/temp_folder.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <sched.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace weft::mesh {
namespace {

namespace fs = std::filesystem;

/// A folder in place of "/".
class UsableCores : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  double quota() const { return base::current_core_share(root_).quota; }

  test::TempFolder folder_;
  const fs::path root_ = folder_.path();
};

/// What `count` says where this thread keeps to one core.
int64_t on_one_core(int64_t (*count)()) {
  int64_t result = 0;
  std::thread([&] {
    cpu_set_t all;
    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all)) {
      ++cpu;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    result = count();
  }).join();
  return result;
}

TEST_F(UsableCores, AreThoseOfTheAffinity) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(base::usable_cores(root_), CPU_COUNT(&all));
  EXPECT_EQ(on_one_core([] { return base::usable_cores("/nowhere"); }), 1);
}

TEST_F(UsableCores, AQuotaOfVersion2Counts) {
  write("proc/self/cgroup", "0::/user.slice/job_3/step\n");
  EXPECT_EQ(quota(), 0);
  write("sys/fs/cgroup/user.slice/job_3/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/user.slice/job_3/step/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 1.5);
  EXPECT_EQ(
      base::usable_cores(root_), std::min(base::usable_cores("/nowhere"), 2L));
  // Of the groups around it, too.
  write("sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 0.5);
  EXPECT_EQ(base::usable_cores(root_), 1);
}

TEST_F(UsableCores, InAContainerTheMountIsTheGroup) {
  write("proc/self/cgroup", "0::/../../docker/abc\n");
  write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(quota(), 2);
}

TEST_F(UsableCores, AQuotaOfVersion1Counts) {
  write(
      "proc/self/cgroup",
      "12:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/\n");
  const std::string folder = "sys/fs/cgroup/cpu,cpuacct/job/";
  write(folder + "cpu.cfs_quota_us", "-1\n");
  write(folder + "cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 0);
  write(folder + "cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(quota(), 0.5);
}

TEST_F(UsableCores, OfProcessesAddUp) {
  base::CoreShare one{{0, 1}, 0, ""};
  base::CoreShare two{{1, 2}, 0, ""};
  EXPECT_EQ(base::count_cores({one, two}), 3);
  EXPECT_EQ(base::count_cores({one, one, one, one}), 2);
  one.quota = 1;
  one.quota_group = "/a group";
  two.quota = 0.5;
  two.quota_group = "/b";
  EXPECT_EQ(base::count_cores({one, two}), 2);
  EXPECT_EQ(base::count_cores({one, one}), 1);
  EXPECT_EQ(base::count_cores({}), 1);
  const auto same = base::CoreShare::from_text(one.to_text());
  EXPECT_EQ(same.cpus, one.cpus);
  EXPECT_EQ(same.quota, one.quota);
  EXPECT_EQ(same.quota_group, one.quota_group);
}

} // namespace
} // namespace weft::mesh
