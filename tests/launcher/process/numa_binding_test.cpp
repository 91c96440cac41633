#include "launcher/process/numa_binding.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/process/error.h"
#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Cpus = std::set<int>;

Cpus range(int first, int last) {
  Cpus cpus;
  for (int cpu = first; cpu <= last; ++cpu) {
    cpus.insert(cpu);
  }
  return cpus;
}

class NumaCpus : public ::testing::Test {
 protected:
  NumaCpus() { host_.root = folder_.path(); }

  void write(const std::filesystem::path& path, const std::string& text) {
    const auto whole = folder_ / path.string();
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text << "\n";
  }
  void node(int number, const std::string& cpus) {
    write(
        "sys/devices/system/node/node" + std::to_string(number) + "/cpulist",
        cpus);
  }
  void cpu(int number, const std::string& file, const std::string& text) {
    write(
        "sys/devices/system/cpu/cpu" + std::to_string(number) + "/" + file,
        text);
  }
  /// Two sockets of two nodes of unequal size: 0-3, 4-5 | 6-9, 10-15; a fifth
  /// node has no CPUs. Neighbours 2k, 2k+1 share a core.
  void two_sockets() {
    write("sys/devices/system/node/online", "0-4");
    node(0, "0-3");
    node(1, "4-5");
    node(2, "6-9");
    node(3, "10-15");
    node(4, "");
    for (int i = 0; i < 16; ++i) {
      const int core = i / 2 * 2;
      cpu(i, "topology/physical_package_id", i < 6 ? "0" : "1");
      cpu(i,
          "topology/thread_siblings_list",
          std::to_string(core) + "-" + std::to_string(core + 1));
    }
    host_.allowed_cpus = range(0, 15);
  }
  auto bound(NumaBinding binding, int workers) {
    return numa_cpus(binding, workers, host_);
  }

  test::TempFolder folder_;
  NumaHost host_;
};

TEST_F(NumaCpus, RanksSpreadOverTheNodesInOrder) {
  two_sockets();
  EXPECT_THAT(
      bound(NumaBinding::kNode, 4),
      ElementsAre(range(0, 3), range(4, 5), range(6, 9), range(10, 15)));
  EXPECT_THAT(
      bound(NumaBinding::kNode, 2), ElementsAre(range(0, 3), range(6, 9)));
  const auto eight = bound(NumaBinding::kNode, 8);
  EXPECT_EQ(eight[1], range(0, 3));
  EXPECT_EQ(eight[7], range(10, 15));
  EXPECT_THAT(bound(NumaBinding::kNone, 4), IsEmpty());
}

TEST_F(NumaCpus, ASocketHasAllItsNodes) {
  two_sockets();
  EXPECT_THAT(
      bound(NumaBinding::kSocket, 4),
      ElementsAre(range(0, 5), range(0, 5), range(6, 15), range(6, 15)));
}

TEST_F(NumaCpus, ExclusiveSharesOutWholeCores) {
  two_sockets();
  host_.device_nodes = {3, 3, 0};
  // Three cores for two: the first gets one more.
  EXPECT_THAT(
      bound(NumaBinding::kExclusive, 3),
      ElementsAre(range(10, 13), range(14, 15), range(0, 3)));
  host_.device_nodes = {1, 1};
  try {
    bound(NumaBinding::kExclusive, 2);
    FAIL();
  } catch (const LaunchError& error) {
    EXPECT_THAT(
        error.what(), HasSubstr("NUMA node 1 has 1 cores for 2 workers"));
  }
}

TEST_F(NumaCpus, OnlyAllowedCpusCount) {
  two_sockets();
  host_.allowed_cpus = {1, 2, 12};
  EXPECT_THAT(bound(NumaBinding::kNode, 2), ElementsAre(Cpus{1, 2}, Cpus{12}));
}

TEST_F(NumaCpus, CoreComplexesShareTheLastCache) {
  two_sockets();
  for (int i = 0; i < 16; ++i) {
    cpu(i, "cache/index0/level", "1");
    cpu(i, "cache/index0/type", "Instruction");
    cpu(i, "cache/index0/shared_cpu_list", "0-15");
    cpu(i, "cache/index1/level", "3");
    cpu(i, "cache/index1/type", "Unified");
    cpu(i, "cache/index1/shared_cpu_list", i < 12 ? "10-11" : "12-15");
  }
  host_.device_nodes = {3, 3, 3};
  // The largest first, and again from the beginning.
  EXPECT_THAT(
      bound(NumaBinding::kCoreComplex, 3),
      ElementsAre(range(12, 15), range(10, 11), range(12, 15)));
}

TEST_F(NumaCpus, AHostWithoutTheFilesIsOneNode) {
  host_.allowed_cpus = range(0, 2);
  EXPECT_THAT(
      bound(NumaBinding::kNode, 2), ElementsAre(range(0, 2), range(0, 2)));
  EXPECT_THAT(
      bound(NumaBinding::kExclusive, 2), ElementsAre(range(0, 1), Cpus{2}));
  EXPECT_EQ(bound(NumaBinding::kCoreComplex, 1)[0].size(), 1);
}

TEST_F(NumaCpus, DevicesAreThoseThatCudaSees) {
  for (const auto& [address, node] : std::map<std::string, std::string>{
           {"0000:3b:00.0", "0"},
           {"0000:af:00.0", "2"},
           {"0000:d8:00.0", "-1"}}) {
    write("proc/driver/nvidia/gpus/" + address + "/information", "");
    write("sys/bus/pci/devices/" + address + "/numa_node", node);
  }
  EXPECT_THAT(device_numa_nodes(host_.root, nullptr), ElementsAre(0, 2, 0));
  EXPECT_THAT(device_numa_nodes(host_.root, "1,0"), ElementsAre(2, 0));
  EXPECT_THAT(device_numa_nodes(host_.root, ""), IsEmpty());
}

TEST(NumaBinding, ReadsItsNames) {
  EXPECT_EQ(parse_numa_binding("core-complex"), NumaBinding::kCoreComplex);
  EXPECT_EQ(parse_numa_binding(""), NumaBinding::kNone);
  EXPECT_THROW(parse_numa_binding("nodes"), LaunchError);
  EXPECT_THAT(parse_cpu_list("0-2,5,x,7-6"), ElementsAre(0, 1, 2, 5));
}

TEST(NumaBinding, WorkersRunOnTheirCpus) {
  const auto host = current_numa_host();
  if (host.allowed_cpus.size() < 2) {
    GTEST_SKIP() << "one CPU is nothing to share out";
  }
  WeftrunProcess run(shell(
      2,
      "echo $RANK $(grep Cpus_allowed_list /proc/self/status | cut -f2)",
      {"--numa-binding", "exclusive"}));
  ASSERT_EQ(run.wait(), 0) << run.error();
  const auto expected = numa_cpus(NumaBinding::kExclusive, 2, host);
  for (const auto& line : lines_of(run.output())) {
    const size_t rank = line[0] - '0';
    EXPECT_EQ(parse_cpu_list(line.substr(2)), expected.at(rank)) << line;
  }
  EXPECT_EQ(lines_of(run.output()).size(), 2);
}

} // namespace
} // namespace weft::launcher
