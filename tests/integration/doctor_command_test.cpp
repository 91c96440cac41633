// What weft doctor says of this host, and of a job that runs on it.
#include <fstream>
#include <set>
#include <sstream>

#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

/// Local addresses of listening sockets, in hexadecimal, by inode.
std::map<std::string, std::string> listening_sockets() {
  std::map<std::string, std::string> sockets;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      std::istringstream stream(line);
      std::vector<std::string> fields{
          std::istream_iterator<std::string>(stream), {}};
      if (fields.size() > 9 && fields[3] == "0A") {
        sockets[fields[9]] = fields[1];
      }
    }
  }
  return sockets;
}

/// Ports that the process listens on.
std::multiset<int> ports_of(pid_t pid) {
  const auto sockets = listening_sockets();
  std::multiset<int> ports;
  std::error_code error;
  for (const auto& fd :
       fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(fd.path(), gone);
    if (target.starts_with("socket:[")) {
      const auto found = sockets.find(target.substr(8, target.size() - 9));
      if (found != sockets.end()) {
        const auto colon = found->second.find(':');
        ports.insert(std::stoi(found->second.substr(colon + 1), nullptr, 16));
      }
    }
  }
  return ports;
}

using DoctorCommandTest = ProcessTest;

TEST_F(DoctorCommandTest, SaysWhatThisHostHas) {
  Process run({WEFT_WEFT, "doctor"}, folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  for (const char* name :
       {"versions: weft ",
        "\ndevices: the CPU",
        "\ncpu: ",
        "\nmemory: ",
        "\nshared memory: /dev/shm of ",
        "\nloopback: 127.0.0.1 answers",
        "\nlimits: open files ",
        "\nhost name: "}) {
    EXPECT_THAT(run.output(), HasSubstr(name));
  }
  EXPECT_THAT(run.output(), Not(HasSubstr("PROBLEM")));
}

TEST_F(DoctorCommandTest, NamesTheAllocatorAndAUsersOwnGoesFirst) {
  Process run({WEFT_WEFT, "doctor"}, folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(run.output(), HasSubstr("; allocator " WEFT_ALLOCATOR));

  Process other(
      {"/usr/bin/env", "LD_PRELOAD=libc.so.6", WEFT_WEFT, "doctor"}, folder_);
  ASSERT_EQ(other.wait(), 0) << other.error();
  EXPECT_THAT(other.output(), HasSubstr("; allocator libc.so.6"));
}

TEST_F(DoctorCommandTest, NamesWhatWouldNotWork) {
  Process run(
      {"/bin/sh", "-c", "ulimit -n 100; exec \"$0\" doctor --json", WEFT_WEFT},
      folder_);
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(
      run.last_error_line(),
      HasSubstr("ERROR 1 rank=0 op=doctor limits: 100 open files are too few"));
  const auto json = nlohmann::json::parse(run.output());
  int problems = 0;
  for (const auto& check : json.at("checks")) {
    problems += check.at("problem") != "";
  }
  EXPECT_EQ(problems, 1);
}

TEST_F(DoctorCommandTest, ListsExactlyWhatARunListensOn) {
  Process job(
      launched(2, train({"train.steps=1000000", "eval.every=0"})), folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(job));
  const auto workers = workers_of(job.pid());
  ASSERT_EQ(workers.size(), 2);
  Process run({WEFT_WEFT, "doctor", "--listeners", "--json"}, folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  const auto json = nlohmann::json::parse(run.output());
  EXPECT_TRUE(json.at("checks").empty());
  std::map<int, std::multiset<int>> listed;
  for (const auto& listener : json.at("listeners")) {
    listed[listener.at("pid")].insert(listener.at("port").get<int>());
  }
  size_t sockets = 0;
  for (const auto& [rank, worker] : workers) {
    const auto ports = ports_of(worker.pid());
    EXPECT_EQ(listed[worker.pid()], ports) << rank;
    sockets += ports.size();
    for (const auto& listener : json.at("listeners")) {
      if (listener.at("pid") == worker.pid()) {
        EXPECT_EQ(listener.at("rank"), rank);
        EXPECT_EQ(listener.at("program"), "weft");
        EXPECT_TRUE(listener.at("loopback")) << listener;
      }
    }
  }
  EXPECT_GE(sockets, 1); // the store's at least
  EXPECT_EQ(listed[job.pid()], ports_of(job.pid()));
}

} // namespace
} // namespace weft::test
