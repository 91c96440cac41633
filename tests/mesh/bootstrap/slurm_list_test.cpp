#include "mesh/bootstrap/slurm_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/support/expect_error.h"

namespace weft::mesh {
namespace {

using test::message_of_thrown;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> hosts(const std::string& list) {
  return expand_host_list("SLURM_STEP_NODELIST", list);
}

std::string refused_hosts(const std::string& list) {
  return message_of_thrown<UsageError>([&] { hosts(list); });
}

std::vector<int64_t> counts(const std::string& list) {
  return expand_task_counts("SLURM_TASKS_PER_NODE", list);
}

std::string refused_counts(const std::string& list) {
  return message_of_thrown<UsageError>([&] { counts(list); });
}

TEST(SlurmList, HostsAreExpandedInOrder) {
  EXPECT_THAT(hosts("vm"), ElementsAre("vm"));
  EXPECT_THAT(hosts("b,a"), ElementsAre("b", "a"));
  EXPECT_THAT(
      hosts("node[1-3,7]"), ElementsAre("node1", "node2", "node3", "node7"));
  EXPECT_THAT(
      hosts("login-1.cluster_a,gpu[8-9]-ib"),
      ElementsAre("login-1.cluster_a", "gpu8-ib", "gpu9-ib"));
  EXPECT_THAT(hosts("[1-2]"), ElementsAre("1", "2"));
}

TEST(SlurmList, LeadingZerosOfHostsAreKept) {
  EXPECT_THAT(
      hosts("node[001-002,010]"), ElementsAre("node001", "node002", "node010"));
  EXPECT_THAT(hosts("n[09-11]"), ElementsAre("n09", "n10", "n11"));
  EXPECT_THAT(hosts("n[9-11]"), ElementsAre("n9", "n10", "n11"));
}

TEST(SlurmList, HostsOfSeveralDimensionsAreAllCombinations) {
  EXPECT_THAT(
      hosts("gpu-a[1-2]b[3-4],x"),
      ElementsAre("gpu-a1b3", "gpu-a1b4", "gpu-a2b3", "gpu-a2b4", "x"));
  EXPECT_THAT(hosts("r[1][2-3]"), ElementsAre("r12", "r13"));
}

TEST(SlurmList, WrongHostsAreRefusedWithThePlace) {
  EXPECT_THAT(
      refused_hosts("node[1-"),
      AllOf(
          HasSubstr("[environment] SLURM_STEP_NODELIST=node[1- cannot be read"),
          HasSubstr("a number of 1 to 9 digits is expected at character 8")));
  EXPECT_THAT(refused_hosts("node[1-2"), HasSubstr("',' or ']' is expected"));
  EXPECT_THAT(refused_hosts("node[]"), HasSubstr("at character 6"));
  EXPECT_THAT(refused_hosts("node[1,]"), HasSubstr("at character 8"));
  EXPECT_THAT(refused_hosts("node[a]"), HasSubstr("at character 6"));
  EXPECT_THAT(refused_hosts("node[1[2]]"), HasSubstr("at character 7"));
  EXPECT_THAT(refused_hosts("node[3-1]"), HasSubstr("the range 3-1 is empty"));
  EXPECT_THAT(
      refused_hosts("node1]"),
      AllOf(HasSubstr("'[' or ','"), HasSubstr("at character 6")));
  EXPECT_THAT(refused_hosts("a b"), HasSubstr("at character 2"));
  EXPECT_THAT(refused_hosts("a;reboot"), HasSubstr("at character 2"));
  EXPECT_THAT(refused_hosts(",a"), HasSubstr("a host is expected"));
  EXPECT_THAT(refused_hosts("a,,b"), HasSubstr("at character 3"));
  EXPECT_THAT(refused_hosts("a,"), HasSubstr("at character 3, the end"));
  EXPECT_THAT(refused_hosts(""), HasSubstr("a host is expected"));
}

TEST(SlurmList, ListsOfTooManyHostsAreRefusedAtOnce) {
  EXPECT_EQ(hosts("n[1-65536]").size(), 65536);
  const auto many = HasSubstr("it has more than 65536 hosts");
  EXPECT_THAT(refused_hosts("n[1-65537]"), many);
  EXPECT_THAT(refused_hosts("n[0-999999999]"), many);
  EXPECT_THAT(refused_hosts("n[1-60000],m[1-60000]"), many);
  EXPECT_THAT(refused_hosts("n[1-999]a[1-999]b[1-999]"), many);
  EXPECT_THAT(refused_hosts("n[1-1000000000]"), HasSubstr("1 to 9 digits"));
  EXPECT_THAT(
      refused_hosts(std::string(300, 'n')),
      AllOf(HasSubstr("name is too long"), HasSubstr("nnn... cannot be read")));
  EXPECT_THAT(
      refused_hosts(std::string(2000000, 'n')),
      HasSubstr("it is 2000000 bytes long"));
}

TEST(SlurmList, TaskCountsAreRepeated) {
  EXPECT_THAT(counts("4"), ElementsAre(4));
  EXPECT_THAT(counts("4(x2),3"), ElementsAre(4, 4, 3));
  EXPECT_THAT(counts("1,2(x1),1"), ElementsAre(1, 2, 1));
  EXPECT_EQ(counts("1(x16384)").size(), 16384);
}

TEST(SlurmList, WrongTaskCountsAreRefused) {
  for (const char* list :
       {"",
        "x",
        "4(",
        "4(x",
        "4(x2",
        "4(2)",
        "4(x)",
        "4,",
        "4 ",
        "-4",
        "4x2",
        "99999999999"}) {
    EXPECT_THAT(
        refused_counts(list),
        AllOf(
            HasSubstr("SLURM_TASKS_PER_NODE="),
            HasSubstr(" is expected at character ")))
        << list;
  }
  EXPECT_THAT(refused_counts("0"), HasSubstr("0 tasks on a host"));
  EXPECT_THAT(refused_counts("999999999"), HasSubstr("999999999 tasks"));
  EXPECT_THAT(refused_counts("4(x0)"), HasSubstr("repeat count of 0"));
  EXPECT_THAT(
      refused_counts("1(x65536),1"), HasSubstr("more than 65536 hosts"));
}

} // namespace
} // namespace weft::mesh
