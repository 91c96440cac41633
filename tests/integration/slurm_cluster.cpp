#include "tests/integration/slurm_cluster.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include <signal.h>
#include <unistd.h>

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Words = std::vector<std::string>;

// The nodes' names are not hosts' names: addresses are given here. Only
// loopback listens, as the one that reaches a slurmd may run programs.
constexpr const char* kConfiguration = R"(ClusterName=weft
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
KillWait=30
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
)";
// A job's steps outlive slurmd: this ends what belongs to the configuration $2
// once the process $1 is gone.
constexpr const char* kWatchdog = R"(
while kill -0 "$1" 2>/dev/null; do sleep 0.5; done
cd /proc
for process in [0-9]*; do
  grep -qs "SLURM_CONF=$2" "$process/environ" && kill -KILL "$process"
done
)";
constexpr std::array<const char*, 2> kNodes{"node1", "node2"};

template <class Condition>
bool comes_true(const Condition& condition, seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
  return true;
}

void write_key(const fs::path& path) {
  std::random_device random;
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < 256; ++i) {
    file.put(static_cast<char>(random()));
  }
  file.close();
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
}

/// Processes with `text` in their environment, or in `folder`.
std::vector<pid_t> processes_of(
    const std::string& text,
    const fs::path& folder) {
  std::vector<pid_t> result;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos ||
        std::stoi(name) == getpid()) {
      continue;
    }
    std::error_code gone;
    if (test::read_text(entry.path() / "environ").find(text) !=
            std::string::npos ||
        fs::read_symlink(entry.path() / "cwd", gone) == folder) {
      result.push_back(std::stoi(name));
    }
  }
  return result;
}

std::string command_line(pid_t pid) {
  auto text =
      test::read_text(fs::path("/proc") / std::to_string(pid) / "cmdline");
  std::ranges::replace(text, '\0', ' ');
  return text;
}

} // namespace

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(
      std::string(path == nullptr ? "" : path) +
      ":/usr/local/sbin:/usr/sbin:/sbin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto candidate = fs::path(folder) / name;
    if (access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
  }
  return "";
}

std::string SlurmCluster::obstacle() {
  std::string missing;
  for (const auto* name :
       {"munged", "slurmctld", "slurmd", "srun", "sbatch", "setpriv"}) {
    if (find_program(name).empty()) {
      missing += std::string(missing.empty() ? "no " : ", ") + name;
    }
  }
  return missing.empty() && geteuid() != 0 ? "slurmd wants to be root"
                                           : missing;
}

SlurmCluster::SlurmCluster(fs::path folder) : folder_(std::move(folder)) {
  fs::create_directories(folder_ / "state");
  write_key(folder_ / "key");
  write_configuration();
  const Words watchdog{
      "/bin/sh",
      "-c",
      kWatchdog,
      "watchdog",
      std::to_string(getpid()),
      folder_ / "slurm.conf"};
  daemons_.push_back(std::make_unique<Process>(watchdog, folder_));
  const auto path = [&](const char* name) { return (folder_ / name).string(); };
  // munged would refuse a folder that others may not enter.
  start(
      "munged",
      {"--foreground",
       "--force",
       "--key-file=" + path("key"),
       "--socket=" + path("munge.sock"),
       "--pid-file=" + path("munged.pid"),
       "--log-file=" + path("munged.log"),
       "--seed-file=" + path("munged.seed")});
  comes_true([&] { return fs::exists(folder_ / "munge.sock"); }, seconds(10));
  start("slurmctld", {"-D"});
  for (const auto* node : kNodes) {
    start("slurmd", {"-D", "-N", node});
  }
  if (!comes_true([&] { return is_up(); }, seconds(20))) {
    const auto said = logs();
    end();
    throw std::runtime_error(said);
  }
}

SlurmCluster::~SlurmCluster() {
  end();
}

void SlurmCluster::write_configuration() const {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const auto folder = folder_.string();
  std::ofstream file(folder_ / "slurm.conf");
  file << kConfiguration << "SlurmctldHost=" << host.data() << "(127.0.0.1)\n"
       << "SlurmctldPort=" << free_port() << "\n"
       << "AuthInfo=socket=" << folder << "/munge.sock\n"
       << "StateSaveLocation=" << folder << "/state\n"
       << "SlurmdSpoolDir=" << folder << "/spool-%n\n"
       << "SlurmctldPidFile=" << folder << "/slurmctld.pid\n"
       << "SlurmdPidFile=" << folder << "/slurmd-%n.pid\n"
       << "SlurmctldLogFile=" << folder << "/slurmctld.log\n"
       << "SlurmdLogFile=" << folder
       << "/slurmd-%n.log\n"
       // The ranks' port comes from the job's number: tests at once differ.
       << "FirstJobId=" << 16 * getpid() << "\n";
  for (const auto* node : kNodes) {
    file << "NodeName=" << node << " NodeHostname=" << host.data()
         << " NodeAddr=127.0.0.1 Port=" << free_port() << " CPUs=64\n";
  }
}

void SlurmCluster::start(const std::string& name, Words words) {
  Words all{find_program("setpriv"), "--pdeathsig=KILL", find_program(name)};
  all.insert(all.end(), words.begin(), words.end());
  daemons_.push_back(std::make_unique<Process>(all, folder_, variables()));
}

bool SlurmCluster::is_up() const {
  Process sinfo(
      {find_program("sinfo"), "-h", "-o", "%D %t"}, folder_, variables());
  return sinfo.wait(seconds(10)) == 0 && sinfo.output() == "2 idle\n";
}

std::string SlurmCluster::logs() const {
  std::string result;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().extension() == ".log") {
      const auto lines = lines_of(test::read_text(entry.path()));
      result += entry.path().filename().string() + ": " +
                (lines.empty() ? "" : lines.back()) + "\n";
    }
  }
  for (const auto& daemon : daemons_) {
    result += daemon->error();
  }
  return result;
}

std::vector<std::string> SlurmCluster::end() {
  const auto nothing_runs = [&] {
    Process squeue({find_program("squeue"), "-h"}, folder_, variables());
    return squeue.wait(seconds(10)) != 0 || squeue.output().empty();
  };
  if (!daemons_.empty()) {
    Process(
        {find_program("scancel"), "--user=" + std::to_string(geteuid())},
        folder_,
        variables())
        .wait(seconds(10));
    comes_true(nothing_runs, seconds(10));
  }
  while (!daemons_.empty()) {
    daemons_.back()->send(SIGTERM);
    daemons_.back()->wait(seconds(10));
    daemons_.pop_back();
  }
  std::vector<pid_t> left;
  const auto is_gone = [&] {
    left = processes_of((folder_ / "slurm.conf").string(), folder_);
    return left.empty();
  };
  comes_true(is_gone, seconds(5));
  std::vector<std::string> result;
  for (const auto pid : left) {
    result.push_back(command_line(pid));
    kill(pid, SIGKILL);
  }
  return result;
}

Process::Variables SlurmCluster::variables() const {
  return {{"SLURM_CONF", folder_ / "slurm.conf"}};
}

std::string SlurmCluster::ask(const Words& words) const {
  auto command = words;
  command[0] = find_program(words[0]);
  Process process(command, folder_, variables());
  if (process.wait(seconds(20)) != 0) {
    throw std::runtime_error(words[0] + ": " + process.error());
  }
  return process.output();
}

} // namespace weft::test
